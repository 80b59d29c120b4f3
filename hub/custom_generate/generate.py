"""Speculative decoding for any decoder-only model: `model.generate(..., custom_generate=<this folder>)`."""

from cactus_decoding.engines.transformers.generate import generate_speculatively


def generate(model, **arguments):
    """Call `speculative_generate` with everything that `generate` was given."""
    return generate_speculatively(model, **arguments)
