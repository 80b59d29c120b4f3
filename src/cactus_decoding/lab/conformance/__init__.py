"""Whether an engine's speculation is lossless: tests with known error rates, on tiny models."""
