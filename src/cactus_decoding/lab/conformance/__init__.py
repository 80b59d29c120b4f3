"""Whether an engine's speculation is lossless: tiny models with known laws, and tests with known error rates."""
