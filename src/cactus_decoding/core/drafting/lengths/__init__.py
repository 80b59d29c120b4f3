"""How many tokens to propose in each step; `drafting.registry` has their names."""
