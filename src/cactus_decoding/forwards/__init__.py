"""How a model reads tokens: a lean forward pass for common architectures, and transformers' own for all others."""

from cactus_decoding.forwards.base import Forward
from cactus_decoding.forwards.general import GeneralForward
from cactus_decoding.forwards.layout import lay_out_for_small_products
from cactus_decoding.forwards.lean import LeanForward
from cactus_decoding.forwards.weights import Weights, read_weights

__all__ = ["Forward", "GeneralForward", "LeanForward", "Weights", "lay_out_for_small_products", "read_weights"]
