"""Where proposals come from: a draft model, the text itself, or a candidate generator of transformers."""

from cactus_decoding.drafters.candidates import CandidateGeneratorDrafter
from cactus_decoding.drafters.model import ModelDrafter
from cactus_decoding.drafters.ngram import NgramDrafter

__all__ = ["CandidateGeneratorDrafter", "ModelDrafter", "NgramDrafter"]
