"""Trees of proposals: their shapes, one a file, and how a step's tree grows; `drafting.registry` has their names."""
