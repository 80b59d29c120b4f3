"""Trees that grow by what their tokens are worth."""
