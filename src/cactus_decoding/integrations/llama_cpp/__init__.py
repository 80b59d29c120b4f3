"""llama-cpp-python's own class and an OpenAI-compatible server, on our loop."""
