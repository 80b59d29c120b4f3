"""What servers of OpenAI's API share: settings of requests, guards and streams."""
