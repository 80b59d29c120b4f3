"""The server that answers from GGUF files."""
