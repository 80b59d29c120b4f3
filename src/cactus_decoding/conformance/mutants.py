"""Engines that are wrong in one way each: every one of them must be caught."""

# ruff: noqa: D102 - what methods are for `Reference` says

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cactus_decoding.conformance.alternatives import LENIENCE, UNLIKELY
from cactus_decoding.conformance.asking import Answer, Query, Sampling
from cactus_decoding.conformance.models import PROMPTS
from cactus_decoding.conformance.processing import Rows
from cactus_decoding.conformance.reference import Numbers, Reference, plain
from cactus_decoding.conformance.truth import Wanted


class RecoveryFromTarget(Reference):
    """After a rejection the target's row is drawn from."""

    def recovery(self, target: Rows, draft: Rows, token: int) -> Rows:
        return target


class RecoveryFromDraft(Reference):
    """After a rejection the draft's row is drawn from."""

    def recovery(self, target: Rows, draft: Rows, token: int) -> Rows:
        return np.where(target > 0, draft + 1e-12, 0)


class RecoveryWithoutRejected(Reference):
    """After a rejection the target's row without the rejected token is drawn from: right for one-hot drafts only."""

    def recovery(self, target: Rows, draft: Rows, token: int) -> Rows:
        left = target * (np.arange(len(target)) != token)
        return left if left.sum() > 0 else target


class GreedyFallback(Reference):
    """After a rejection the target's likeliest token comes."""

    def recovery(self, target: Rows, draft: Rows, token: int) -> Rows:
        return np.asarray(np.eye(len(target))[target.argmax()])


class AcceptsAtZero(Reference):
    """The test is u p <= q, with u of 8 bits: u = 0 accepts tokens that are cut."""

    def accepts(self, uniform: float, target: Rows, draft: Rows, token: int, sampling: Sampling) -> bool:
        return bool(int(uniform * 256) / 256 * draft[token] <= target[token])


class Lenient(Reference):
    """Tokens are accepted more often than they should."""

    def accepts(self, uniform: float, target: Rows, draft: Rows, token: int, sampling: Sampling) -> bool:
        return bool(uniform * draft[token] * LENIENCE < target[token])


class CertainDraft(Reference):
    """Drawn proposals are tested as if the draft were certain of them: lossless, but fewer are kept than could be."""

    def accepts(self, uniform: float, target: Rows, draft: Rows, token: int, sampling: Sampling) -> bool:
        return bool(uniform < target[token])

    def recovery(self, target: Rows, draft: Rows, token: int) -> Rows:
        left = target * (np.arange(len(target)) != token)
        return left if left.sum() > 0 else target


class UntruncatedDraft(Reference):
    """Tokens are tested by the draft's row before temperature and cuts."""

    def tested(self, sampling: Sampling) -> Sampling:
        return plain(sampling)


class DropsUnlikely(Reference):
    """Unlikely proposals are dropped after they were drawn."""

    def proposes(self, row: Rows, token: int) -> bool:
        return bool(row[token] >= UNLIKELY)


class BonusFromDraft(Reference):
    """After all proposals were kept the draft is drawn from."""

    def bonus(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        return Wanted(sampling.draft if drafted else "target", (*text, *drafted), start, sampling)


class OffByOne(Reference):
    """Proposals behind the first are tested by the row of the position before."""

    def target(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        return Wanted("target", (*text, *drafted[: max(len(drafted) - 1, 0)]), start, sampling)


class StaleCache(Reference):
    """After a rejection the rejected token stays in the cache, in the place of the one that was emitted."""

    def keep(self, text: tuple[int, ...], emitted: list[int], recovered: int, rejected: int | None) -> tuple[int, ...]:
        return (*text, *emitted, recovered if rejected is None else rejected)


class LatePenalties(Reference):
    """Penalties know of no token of the step that is verified."""

    def target(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        return Wanted("target", (*text, *drafted), start, sampling, counted=len(text))


class WrongOrder(Reference):
    """Rows are cut at temperature 1, and the temperature comes last."""

    def target(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        return Wanted("target", (*text, *drafted), start, sampling, temperature_last=True)


class NoTemperature(Reference):
    """The target's rows are not tempered where several are tested at once."""

    def target(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        own = replace(sampling, temperature=1.0) if drafted and sampling.temperature else sampling
        return Wanted("target", (*text, *drafted), start, own)


class BiasOnce(Reference):
    """The logit bias reaches the first row of a step only."""

    def target(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        return Wanted("target", (*text, *drafted), start, replace(sampling, logit_bias=()) if drafted else sampling)


class GrammarOnce(Reference):
    """The grammar reaches the first row of a step only."""

    def target(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        return Wanted("target", (*text, *drafted), start, replace(sampling, letters="") if drafted else sampling)


class ReusedUniform(Reference):
    """The number that rejected a token draws the next one."""

    def second(self, uniform: float, numbers: Numbers) -> float:
        return uniform


class SharedSeeds(Reference):
    """All responses of a batch have the first one's random numbers."""

    def numbers(self, queries: Sequence[Query]) -> list[Numbers]:
        return [Numbers(queries[0].seed) for _ in queries]


class SharedSampling(Reference):
    """All responses of a batch are drawn by the first one's sampling."""

    def answer(self, queries: Sequence[Query]) -> list[Answer]:
        return super().answer([replace(each, sampling=queries[0].sampling) for each in queries])


class SeedsIgnored(Reference):
    """Every response has the same random numbers."""

    def numbers(self, queries: Sequence[Query]) -> list[Numbers]:
        return [Numbers(0) for _ in queries]


class EatenStop(Reference):
    """A stop token that was proposed is left out, and the response goes on."""

    def stops(self, output: list[int], drafted: bool) -> bool:
        if drafted:
            output.pop()
        return not drafted


class LateStop(Reference):
    """A stop token that was proposed does not end the response."""

    def stops(self, output: list[int], drafted: bool) -> bool:
        return not drafted


class OneTooMany(Reference):
    """A step proposes as many tokens as ever at the end of max_tokens."""

    def room(self, sampling: Sampling, length: int) -> int:
        return sampling.num_speculative_tokens


class DraftLogprobs(Reference):
    """Log-probabilities of kept proposals are the draft's."""

    def reported(self, target: Rows, draft: Rows) -> Rows:
        return draft


class LostPrefix(Reference):
    """Of a prompt that begins like another one only that beginning is read."""

    def read(self, query: Query) -> tuple[int, ...]:
        return PROMPTS[0] if query.prompt[: len(PROMPTS[0])] == PROMPTS[0] else query.prompt


class DirtyCancel(Reference):
    """A request that was given up leaves a token in the cache."""

    def read(self, query: Query) -> tuple[int, ...]:
        return (*query.prompt[:-1], query.prompt[-1] % 9 + 1) if query.sampling.cancels else query.prompt


class RelaxedGreedy(Reference):
    """At temperature 0 what the draft proposes is kept."""

    def accepts(self, uniform: float, target: Rows, draft: Rows, token: int, sampling: Sampling) -> bool:
        return sampling.temperature == 0 or super().accepts(uniform, target, draft, token, sampling)


MUTANTS: tuple[type[Reference], ...] = (
    RecoveryFromTarget, RecoveryFromDraft, RecoveryWithoutRejected, GreedyFallback, AcceptsAtZero, Lenient,
    UntruncatedDraft, DropsUnlikely, BonusFromDraft, OffByOne, StaleCache, LatePenalties, WrongOrder,
    NoTemperature, BiasOnce, GrammarOnce, ReusedUniform, SharedSeeds,
    SharedSampling, SeedsIgnored, EatenStop, LateStop, OneTooMany, DraftLogprobs,
    LostPrefix, DirtyCancel, RelaxedGreedy,
)  # fmt: skip
