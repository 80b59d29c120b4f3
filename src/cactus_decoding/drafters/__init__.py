"""Where proposals come from.

A draft model, the target's own first layers, the text itself, or a candidate generator of transformers.
"""

from cactus_decoding.drafters.candidates import CandidateGeneratorDrafter
from cactus_decoding.drafters.model import ModelDrafter
from cactus_decoding.drafters.ngram import NgramDrafter

__all__ = ["CandidateGeneratorDrafter", "ModelDrafter", "NgramDrafter"]
