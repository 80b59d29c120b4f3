"""Trees of proposals: their shapes, and how a step's tree grows; `drafting.registry` has their names."""
