"""Where proposals come from, and how many in each step."""
