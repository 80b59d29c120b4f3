"""Models in GGUF files, read by llama.cpp."""
