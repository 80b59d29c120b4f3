"""GGUF files, read by llama.cpp."""
