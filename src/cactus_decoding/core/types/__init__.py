"""The types that the parts of the package exchange.

Probabilities are float tensors with the vocabulary last; leading dimensions are positions or batches.
"""

from cactus_decoding.core.types.outcomes import (
    AcceptanceRule,
    Choice,
    Fate,
    Outcome,
    Verdict,
    Verification,
    Visit,
    judges_untempered,
)
from cactus_decoding.core.types.proposals import ROOT as ROOT  # described, as the next, in its own module only
from cactus_decoding.core.types.proposals import Drafter, DraftLength, Proposal, StepRows
from cactus_decoding.core.types.proposals import LogitsToProbs as LogitsToProbs

__all__ = [
    "AcceptanceRule",
    "Choice",
    "DraftLength",
    "Drafter",
    "Fate",
    "Outcome",
    "Proposal",
    "StepRows",
    "Verdict",
    "Verification",
    "Visit",
    "judges_untempered",
]
