"""One response: the request, the pair of models, the loop, and what is counted."""
