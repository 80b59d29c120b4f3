"""Speculative sampling with constrained acceptance: Cactus, the rules it is compared with, and what they cost."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it: only type checkers and the documentation's build see these imports
if TYPE_CHECKING:
    from cactus_decoding.auditing import Audit, audit
    from cactus_decoding.budgets.budget import Budget
    from cactus_decoding.drafting.candidates import CandidateGeneratorDrafter
    from cactus_decoding.drafting.lengths import DRAFT_LENGTHS, AdaptiveLength, ConfidenceStop, FixedLength
    from cactus_decoding.drafting.model import ModelDrafter
    from cactus_decoding.drafting.ngram import NgramDrafter
    from cactus_decoding.drafting.registry import DRAFTERS
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
    "DRAFTERS",
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

_NAMES = {
    "auditing": "Audit audit",
    "budgets.budget": "Budget",
    "drafting.candidates": "CandidateGeneratorDrafter",
    "drafting.lengths": "DRAFT_LENGTHS AdaptiveLength ConfidenceStop FixedLength",
    "drafting.model": "ModelDrafter",
    "drafting.ngram": "NgramDrafter",
    "drafting.registry": "DRAFTERS",
    "generation.generate": "Response generate stream",
    "generation.metrics": "Metrics",
    "generation.pair": "Pair load_pair",
    "generation.request": "Request",
    "integrations.transformers.generate": "speculative_generate",
    "rules": "RULES Cactus ClampedRatio Ensemble Lenience Lossless RelaxedGreedy TopK Typical parse_rule",
    "sampling.params": "SamplingParams",
    "types": "AcceptanceRule Drafter DraftLength Fate Outcome Proposal Verdict Verification Visit",
    "verification.block": "verify_block",
    "verification.plain": "verify",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: what needs none of them does not wait for torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
