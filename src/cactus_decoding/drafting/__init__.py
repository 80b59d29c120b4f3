"""Where proposals come from.

A draft model, the target's own first layers, the text itself, or a candidate generator of transformers.
"""

from cactus_decoding.drafting.candidates import CandidateGeneratorDrafter
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.drafting.ngram import NgramDrafter

__all__ = ["CandidateGeneratorDrafter", "ModelDrafter", "NgramDrafter"]
