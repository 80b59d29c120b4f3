"""Where models run: transformers, llama.cpp and vLLM, and what servers of OpenAI's API share."""
