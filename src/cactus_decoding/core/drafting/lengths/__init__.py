"""How many tokens to propose in each step: one way a file; `drafting.registry` has their names."""
