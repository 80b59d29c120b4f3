"""Keyword arguments that make a request, with their types; written by ``scripts/write_keywords.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cactus_decoding.core.drafting.trees.shape import TreeShape
    from cactus_decoding.core.policy.budget import Budget
    from cactus_decoding.core.policy.protection import Protection
    from cactus_decoding.core.policy.relaxation import RelaxationPolicy
    from cactus_decoding.core.sampling.params import SamplingParams
    from cactus_decoding.core.types import AcceptanceRule, DraftLength


class RequestKeywords(TypedDict, total=False):
    """What `Request` takes by name."""

    rule: AcceptanceRule | str
    budget: Budget | float | None
    policy: RelaxationPolicy
    verification: str
    num_speculative_tokens: DraftLength | int | str | None
    tree: TreeShape | str | None
    sampling: SamplingParams
    max_new_tokens: int
    stop: Iterable[str]
    seed: int | None


class RequestSettings(TypedDict, total=False):
    """The settings of a request by their flat names, which `Request.from_dict` takes."""

    budget: Budget | float | None
    rule: AcceptanceRule | str
    budget_nats: float | None
    max_shift: float | None
    expected_tokens: int | None
    max_relaxed: int | None
    protect: str | Protection | None
    protect_threshold: float | None
    lossless_tokens: int
    relax_within: Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | None
    verification: str
    num_speculative_tokens: DraftLength | int | str | None
    tree: TreeShape | str | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    max_new_tokens: int
    stop: Iterable[str]
    seed: int | None
