"""Adapters to `Engine`: a function, transformers, vLLM, llama.cpp, this package, and servers."""
