"""What servers of OpenAI's API share: settings of requests, reports, counters, guards and streams."""
