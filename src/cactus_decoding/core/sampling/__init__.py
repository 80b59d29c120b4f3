"""From logits to probabilities, and from probabilities and a uniform number to a token."""
