"""Speculative sampling with constrained acceptance: Cactus, the rules it is compared with, and what they cost."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it: only type checkers and the documentation's build see these imports
if TYPE_CHECKING:
    from cactus_decoding.core.audit import Audit as Audit
    from cactus_decoding.core.audit import audit as audit
    from cactus_decoding.core.drafting.automatic import AutoLength as AutoLength
    from cactus_decoding.core.drafting.lengths.adaptive import AdaptiveLength as AdaptiveLength
    from cactus_decoding.core.drafting.lengths.base import FixedLength as FixedLength
    from cactus_decoding.core.drafting.lengths.confidence import ConfidenceStop as ConfidenceStop
    from cactus_decoding.core.drafting.model import ModelDrafter as ModelDrafter
    from cactus_decoding.core.drafting.ngram import NgramDrafter as NgramDrafter
    from cactus_decoding.core.drafting.registry import DRAFT_LENGTHS as DRAFT_LENGTHS
    from cactus_decoding.core.drafting.registry import DRAFTERS as DRAFTERS
    from cactus_decoding.core.drafting.suffix import SuffixDrafter as SuffixDrafter
    from cactus_decoding.core.drafting.trees.adaptive_tree import AdaptiveTree as AdaptiveTree
    from cactus_decoding.core.drafting.trees.best_first import BestFirstTree as BestFirstTree
    from cactus_decoding.core.drafting.trees.static_tree import StaticTree as StaticTree
    from cactus_decoding.core.generate import Response as Response
    from cactus_decoding.core.generate import generate as generate
    from cactus_decoding.core.generate import stream as stream
    from cactus_decoding.core.metrics import Metrics as Metrics
    from cactus_decoding.core.pair import Pair as Pair
    from cactus_decoding.core.pair import load_pair as load_pair
    from cactus_decoding.core.policy.budget import Budget as Budget
    from cactus_decoding.core.request import Request as Request
    from cactus_decoding.core.rules import *  # noqa: F403
    from cactus_decoding.core.sampling.params import SamplingParams as SamplingParams
    from cactus_decoding.core.types import AcceptanceRule as AcceptanceRule
    from cactus_decoding.core.types import Drafter as Drafter
    from cactus_decoding.core.types import DraftLength as DraftLength
    from cactus_decoding.core.types import Fate as Fate
    from cactus_decoding.core.types import Outcome as Outcome
    from cactus_decoding.core.types import Proposal as Proposal
    from cactus_decoding.core.types import Verdict as Verdict
    from cactus_decoding.core.types import Verification as Verification
    from cactus_decoding.core.types import Visit as Visit
    from cactus_decoding.core.verification.batched import verify as verify
    from cactus_decoding.core.verification.batched import verify_block as verify_block
    from cactus_decoding.engines.transformers.candidates import CandidateGeneratorDrafter as CandidateGeneratorDrafter
    from cactus_decoding.engines.transformers.generate import speculative_generate as speculative_generate

__version__ = "0.1.0"

_NAMES = {
    "auditing": "Audit audit",
    "policy.budget": "Budget",
    "drafting.automatic": "AutoLength",
    "drafting.candidates": "CandidateGeneratorDrafter",
    "drafting.lengths.adaptive": "AdaptiveLength",
    "drafting.lengths.confidence": "ConfidenceStop",
    "drafting.lengths.base": "FixedLength",
    "drafting.model": "ModelDrafter",
    "drafting.ngram": "NgramDrafter",
    "drafting.registry": "DRAFTERS DRAFT_LENGTHS",
    "drafting.suffix": "SuffixDrafter",
    "drafting.trees.adaptive_tree": "AdaptiveTree",
    "drafting.trees.best_first": "BestFirstTree",
    "drafting.trees.static_tree": "StaticTree",
    "generation.generate": "Response generate stream",
    "generation.metrics": "Metrics",
    "generation.pair": "Pair load_pair",
    "generation.request": "Request",
    "integrations.transformers.generate": "speculative_generate",
    "rules": "RULES Rule parse_rule BigLittle Cactus Cascade ClampedRatio Ensemble Fuzzy KLGate Lenience Lossless Mars "
    "RelaxedGreedy TokenCascade TopK Typical",
    "sampling.params": "SamplingParams",
    "types": "AcceptanceRule Drafter DraftLength Fate Outcome Proposal Verdict Verification Visit",
    "verification.batched": "verify verify_block",
}


def _homes() -> dict[str, str]:
    """Return where each public name comes from."""
    return {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for: what needs none of them does not wait for torch."""
    from importlib import import_module

    homes = _homes()
    if name == "__all__":
        return [*homes]
    if name not in homes:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{homes[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
