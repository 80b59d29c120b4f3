"""Engines that are wrong in one way each; every one of them must be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from cactus_conform.causes import LENIENCE, UNLIKELY
from cactus_conform.models import PROMPTS
from cactus_conform.processing import Rows
from cactus_conform.reference import Numbers, Reference, draw, plain
from cactus_conform.suite import FALSE_ALARM, SAMPLES, conform
from cactus_conform.truth import Truth, Wanted


def _mutant(name: str, mistake: str, **methods: Callable[..., object]) -> type[Reference]:
    return type(name, (Reference,), {"__doc__": mistake, **methods})


def _without(target: Rows, token: int) -> Rows:
    left = target * (np.arange(len(target)) != token)
    return left if left.sum() > 0 else target


def _target(change: Callable[..., dict[str, Any]]) -> Callable[..., Wanted]:
    """Return a `Reference.target` that asks for other probabilities."""
    return lambda self, text, drafted, start, sampling: Wanted("target", (*text, *drafted), start, sampling)._replace(
        **change(text, drafted, sampling)
    )


def _noisy_draw(self: Reference, row: Rows, numbers: Numbers) -> int:
    numbers.kept.append(numbers.gumbels(len(row)))
    return int((_log(row) + numbers.kept[-1]).argmax())


def _one_number(self: Reference, numbers: Numbers, place: int) -> float:
    if place == 0:
        numbers.kept.append(numbers())
    return float(numbers.kept[-1])


def _log(weights: Rows) -> Rows:
    return np.log(weights, where=weights > 0, out=np.full(len(weights), -np.inf))


def _eats(self: Reference, output: list[int], drafted: bool) -> bool:
    del output[len(output) - drafted :]
    return not drafted


CertainDraft = _mutant(
    "CertainDraft",
    "Drawn proposals are tested as if the draft were certain of them: lossless, but fewer are kept than could be.",
    accepts=lambda self, uniform, target, draft, token, sampling: uniform < target[token],
    recovery=lambda self, target, draft, token: _without(target, token),
)
MUTANTS = (
    _mutant("RecoveryFromTarget", "After a rejection the target's row is drawn from.",
            recovery=lambda self, target, draft, token: target),
    _mutant("RecoveryFromDraft", "After a rejection the draft's row is drawn from.",
            recovery=lambda self, target, draft, token: np.where(target > 0, draft + 1e-12, 0)),
    _mutant("RecoveryWithoutRejected", "After a rejection the target's row without the rejected token is drawn from: "
            "right for one-hot drafts only.",
            recovery=lambda self, target, draft, token: _without(target, token)),
    _mutant("GreedyFallback", "After a rejection the target's likeliest token comes.",
            recovery=lambda self, target, draft, token: np.eye(len(target))[target.argmax()]),
    _mutant("AcceptsAtZero", "The test is u p <= q, with u of 8 bits: u = 0 accepts tokens that are cut.",
            accepts=lambda self, uniform, target, draft, token, sampling:
            int(uniform * 256) / 256 * draft[token] <= target[token]),
    _mutant("Lenient", "Tokens are accepted more often than they should.",
            accepts=lambda self, uniform, target, draft, token, sampling:
            uniform * draft[token] * LENIENCE < target[token]),
    _mutant("UntruncatedDraft", "Tokens are tested by the draft's row before temperature and cuts.",
            tested=lambda self, sampling: plain(sampling)),
    _mutant("DropsUnlikely", "Unlikely proposals are dropped after they were drawn.",
            proposes=lambda self, row, token: row[token] >= UNLIKELY),
    _mutant("BonusFromDraft", "After all proposals were kept the draft is drawn from.",
            bonus=lambda self, text, drafted, start, sampling:
            Wanted(sampling.draft if drafted else "target", (*text, *drafted), start, sampling)),
    _mutant("OffByOne", "Proposals after the first are tested by the row of the position before.",
            target=_target(lambda text, drafted, sampling: {"prefix": (*text, *drafted[:-1])})),
    _mutant("StaleCache", "After a rejection the rejected token stays in the cache, in the place of the one that was "
            "emitted.",
            keep=lambda self, text, emitted, recovered, rejected:
            (*text, *emitted, recovered if rejected is None else rejected)),
    _mutant("LatePenalties", "Penalties know of no token of the step that is verified.",
            target=_target(lambda text, drafted, sampling: {"counted": len(text)})),
    _mutant("WrongOrder", "Rows are cut at temperature 1, and the temperature comes last.",
            target=_target(lambda text, drafted, sampling: {"temperature_last": True})),
    _mutant("NoTemperature", "The target's rows are not tempered where several are tested at once.",
            target=_target(lambda text, drafted, sampling:
                           {"sampling": replace(sampling, temperature=1.0 if drafted and sampling.temperature
                                                else sampling.temperature)})),
    _mutant("BiasOnce", "The logit bias reaches the first row of a step only.",
            target=_target(lambda text, drafted, sampling:
                           {"sampling": replace(sampling, logit_bias=())} if drafted else {})),
    _mutant("GrammarOnce", "The grammar reaches the first row of a step only.",
            target=_target(lambda text, drafted, sampling:
                           {"sampling": replace(sampling, letters="")} if drafted else {})),
    _mutant("ReusedUniform", "The number that rejected a token draws the next one.",
            recover=lambda self, weights, uniform, numbers, place: draw(weights, uniform)),
    _mutant("ReusedNoise", "The Gumbel noise that drew a proposal draws the token after its rejection too (vLLM's "
            "second runner, before its pull request 54282).",
            draw=_noisy_draw,
            recover=lambda self, weights, uniform, numbers, place:
            int((_log(weights) + numbers.kept[place]).argmax())),
    _mutant("OneUniform", "One random number tests all proposals of a step.", first=_one_number),
    _mutant("HotDraft", "Proposals are drawn at temperature 1, and tested as if at the temperature of the request.",
            drawn=lambda self, sampling: replace(sampling, temperature=1.0)),
    _mutant("ShortRow", "After all proposals were kept, the row before the last of them is drawn from.",
            bonus=lambda self, text, drafted, start, sampling:
            Wanted("target", (*text, *drafted[:-1]), start, sampling)),
    _mutant("OneMore", "The likeliest top-k + 1 tokens are kept.",
            target=_target(lambda text, drafted, sampling:
                           {"sampling": replace(sampling, top_k=sampling.top_k and sampling.top_k + 1)})),
    _mutant("MinPOfAll", "min-p is compared with probabilities, not with their ratios to the largest.",
            target=_target(lambda text, drafted, sampling: {"min_p_of_all": True})),
    _mutant("SharedSeeds", "All responses of a batch have the first one's random numbers.",
            numbers=lambda self, queries: [Numbers(queries[0].seed) for _ in queries]),
    _mutant("SharedSampling", "All responses of a batch are drawn by the first one's sampling.",
            answer=lambda self, queries:
            Reference.answer(self, [replace(each, sampling=queries[0].sampling) for each in queries])),
    _mutant("SeedsIgnored", "Every response has the same random numbers.",
            numbers=lambda self, queries: [Numbers(0) for _ in queries]),
    _mutant("EatenStop", "A stop token that was proposed is left out, and the response goes on.", stops=_eats),
    _mutant("LateStop", "A stop token that was proposed does not end the response.",
            stops=lambda self, output, drafted: not drafted),
    _mutant("OneTooMany", "A step proposes as many tokens as ever at the end of max_tokens.",
            room=lambda self, sampling, length: sampling.num_speculative_tokens),
    _mutant("DraftLogprobs", "Log-probabilities of kept proposals are the draft's.",
            reported=lambda self, target, draft: draft),
    _mutant("LostPrefix", "Of a prompt that begins like another one only that beginning is read.",
            read=lambda self, query:
            PROMPTS[0] if query.prompt[: len(PROMPTS[0])] == PROMPTS[0] else query.prompt),
    _mutant("DirtyCancel", "A request that was given up leaves a token in the cache.",
            read=lambda self, query:
            (*query.prompt[:-1], query.prompt[-1] % 9 + 1) if query.sampling.cancels else query.prompt),
    _mutant("RelaxedGreedy", "At temperature 0 what the draft proposes is kept.",
            accepts=lambda self, uniform, target, draft, token, sampling:
            sampling.temperature == 0 or uniform * draft[token] < target[token]),
)  # fmt: skip


class Caught(NamedTuple):
    name: str
    mistake: str
    caught: bool
    check: str = ""  # the first that failed, in the suite's order
    samples: int = 0  # that this check took
    responses: int = 0  # of the whole suite until then
    said: str = ""  # the likely cause

    def line(self) -> str:
        if not self.caught:
            return f"MISSED {self.name}: {self.mistake}"
        return (
            f"caught {self.name:24} after {self.responses:5} responses, {self.samples:4} of '{self.check}': {self.said}"
        )


def self_test(*, samples: int = SAMPLES, false_alarm: float = FALSE_ALARM) -> Iterator[Caught]:
    """Run the suite against each mutant; `conform` explains the arguments."""
    truth = Truth()
    for mutant in MUTANTS:
        report = conform(mutant(truth), samples=samples, false_alarm=false_alarm, truth=truth, first_only=True)
        last, about = report.findings[-1], (mutant.__name__, mutant.__doc__ or "", not report)
        yield Caught(*about, *(() if report else (last.check.name, last.samples, report.samples, last.said)))
