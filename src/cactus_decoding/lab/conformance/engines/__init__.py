"""What can be tested, each behind `Engine`: a function, transformers, vLLM, llama.cpp, this package, and servers."""
