"""From logits to rows of probabilities, and from a row and a uniform number to a token."""
