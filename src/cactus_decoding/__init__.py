"""Speculative sampling with constrained acceptance: Cactus, the rules it is compared with, and what they cost."""

from cactus_decoding.auditing import Audit, audit
from cactus_decoding.budgets.budget import Budget
from cactus_decoding.drafting.candidates import CandidateGeneratorDrafter
from cactus_decoding.drafting.lengths import DRAFT_LENGTHS, AdaptiveLength, ConfidenceStop, FixedLength
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.drafting.ngram import NgramDrafter
from cactus_decoding.generation.generate import Response, generate, stream
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.generation.pair import Pair, load_pair
from cactus_decoding.generation.request import Request
from cactus_decoding.integrations.transformers.generate import speculative_generate
from cactus_decoding.rules import (
    RULES,
    Cactus,
    ClampedRatio,
    Ensemble,
    Lenience,
    Lossless,
    RelaxedGreedy,
    TopK,
    Typical,
    parse_rule,
)
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import (
    AcceptanceRule,
    Drafter,
    DraftLength,
    Fate,
    Outcome,
    Proposal,
    Verdict,
    Verification,
    Visit,
)
from cactus_decoding.verification.block import verify_block
from cactus_decoding.verification.plain import verify

__version__ = "0.1.0"

__all__ = [
    "DRAFT_LENGTHS",
    "RULES",
    "AcceptanceRule",
    "AdaptiveLength",
    "Audit",
    "Budget",
    "Cactus",
    "CandidateGeneratorDrafter",
    "ClampedRatio",
    "ConfidenceStop",
    "DraftLength",
    "Drafter",
    "Ensemble",
    "Fate",
    "FixedLength",
    "Lenience",
    "Lossless",
    "Metrics",
    "ModelDrafter",
    "NgramDrafter",
    "Outcome",
    "Pair",
    "Proposal",
    "RelaxedGreedy",
    "Request",
    "Response",
    "SamplingParams",
    "TopK",
    "Typical",
    "Verdict",
    "Verification",
    "Visit",
    "audit",
    "generate",
    "load_pair",
    "parse_rule",
    "speculative_generate",
    "stream",
    "verify",
    "verify_block",
]
