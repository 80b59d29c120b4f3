"""Speculative sampling with constrained acceptance: Cactus, the rules it is compared with, and what they cost."""

from cactus_decoding.adapters.transformers import speculative_generate
from cactus_decoding.audit import Audit, audit
from cactus_decoding.block_verify import verify_block
from cactus_decoding.budget import Budget
from cactus_decoding.decoding import Fate, Step
from cactus_decoding.draft_length import DRAFT_LENGTHS, AdaptiveLength, ConfidenceStop, FixedLength
from cactus_decoding.drafters import CandidateGeneratorDrafter, ModelDrafter, NgramDrafter
from cactus_decoding.generation import Response, generate, stream
from cactus_decoding.metrics import Metrics
from cactus_decoding.pair import Pair, load_pair
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
from cactus_decoding.sampling import SamplingParams
from cactus_decoding.types import AcceptanceRule, Drafter, DraftLength, Proposal, Verdict, Verification
from cactus_decoding.verify import verify

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
    "Pair",
    "Proposal",
    "RelaxedGreedy",
    "Response",
    "SamplingParams",
    "Step",
    "TopK",
    "Typical",
    "Verdict",
    "Verification",
    "audit",
    "generate",
    "load_pair",
    "parse_rule",
    "speculative_generate",
    "stream",
    "verify",
    "verify_block",
]
