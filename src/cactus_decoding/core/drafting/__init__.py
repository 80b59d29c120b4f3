"""Where proposals come from, and how many in each step.

A draft model, the target's own first layers, the text itself, or a candidate generator of transformers.
"""
