"""A forward pass without the framework's overhead, for Llama and its relatives."""
