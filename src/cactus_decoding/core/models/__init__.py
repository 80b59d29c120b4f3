"""Models with caches that can be rolled back, and the forward passes that read tokens into them."""
