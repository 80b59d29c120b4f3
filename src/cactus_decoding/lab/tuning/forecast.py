"""Tokens per second of every draft and draft length, computed from pass times and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch

from cactus_decoding.core.drafting.registry import LOOK_UP
from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.lab.evaluation.intervals import Interval, Numbers, ratio_of_sums
from cactus_decoding.lab.evaluation.score import steps_taken
from cactus_decoding.lab.tuning.answers import TunedAnswer

WORTH = 0.05
"""The least speedup that counts: smaller ones are within what answers and machines differ by."""


@dataclass(frozen=True)
class Forecast:
    """What one draft (``suffix`` for look-up) and draft length gain under one rule."""

    draft: str
    rule: str
    num_speculative_tokens: int
    tokens_per_second: float  # after the prompt
    tokens_per_step: float  # including the recovered or bonus token
    speedup: Interval  # over no proposals; the interval is over prompts

    def __str__(self) -> str:
        who = "look-up" if self.draft == LOOK_UP else self.draft
        return f"{who} with {self.num_speculative_tokens} proposal{'s' * (self.num_speculative_tokens != 1)}"


def forecasts(answers: Sequence[TunedAnswer], times: PassTimes, drafts: Mapping[str, PassTimes]) -> list[Forecast]:
    r"""Return the forecast without proposals, and then one for each draft and rule with 1, 2, … proposals.

    N tokens of an answer in S expected steps of k proposals take

    .. math:: S \, (V(k + 1) + k \, d) + F \, b + N \, v

    with V(n) a pass of the target over n tokens, d one of the draft, b the extra time of a draft that lacks the last
    token, v the time of verification for each token, and F the number of steps in which all is kept, which follows from
    the tokens that the k-th proposal adds to a step. All answers have the same drafts and rules, and k goes up to what
    the widest of the target's timed passes has room for.
    """
    verifying = float(np.median([each.verify_seconds for each in answers]))
    tokens = np.array([len(each.token_ids) for each in answers], dtype=np.float64)
    plain = tokens * (times.of(1) + verifying)
    found = [_forecast(LOOK_UP, "lossless", 0, tokens, tokens, plain, plain)]
    lengths = range(1, times.widths[-1])
    for k in lengths:
        counts = np.array([_copying(each, k, times) for each in answers])
        found.append(_forecast(LOOK_UP, "lossless", k, tokens, counts[:, 0], counts[:, 1] + tokens * verifying, plain))
    for draft, rule in answers[0].chances:
        drafting, before = drafts[draft], tokens
        for k in lengths:
            steps = np.array([_steps(each, draft, rule, k) for each in answers])
            whole = (1 - steps / before).clip(0.0) * tokens  # steps, times N / S(k) - N / S(k - 1)
            seconds = steps * drafting.step(k) + whole * drafting.lag + tokens * verifying
            before = steps
            found.append(_forecast(draft, rule, k, tokens, steps, seconds, plain))
    return found


def _steps(answer: TunedAnswer, draft: str, rule: str, k: int) -> float:
    chances = answer.chances[draft, rule]
    return float(steps_taken(chances, torch.zeros(len(chances), dtype=torch.long), k).sum())


def _copying(answer: TunedAnswer, k: int, times: PassTimes) -> tuple[int, float]:
    """Return the steps that look-up takes along an answer, and the seconds of their passes."""
    at = steps = 0
    seconds = 0.0
    while at < len(answer.token_ids):
        proposed = answer.copied[at][:k]
        pairs = zip(proposed, answer.token_ids[at:], strict=False)
        at += 1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        steps, seconds = steps + 1, seconds + times.of(len(proposed) + 1)
    return steps, seconds


def _forecast(
    draft: str, rule: str, k: int, tokens: Numbers, steps: Numbers, seconds: Numbers, plain: Numbers
) -> Forecast:
    per_second, per_step = tokens.sum() / seconds.sum(), tokens.sum() / steps.sum()
    return Forecast(draft, rule, k, per_second, per_step, speedup=ratio_of_sums(plain, seconds))


def best_of(found: Sequence[Forecast], rule: str) -> Forecast:
    """Return what is fastest under a rule; look-up is judged losslessly under any."""
    speculating = [each for each in found if each.num_speculative_tokens and each.rule in (rule, "lossless")]
    own = [each for each in speculating if each.rule == rule or each.draft == LOOK_UP]
    return max(own, key=lambda each: (each.tokens_per_second, -each.num_speculative_tokens))


def verdict(best: Forecast) -> str:
    value, low, high = best.speedup
    if not pays(best):
        change = f"{100 * (value - 1):.0f} % faster" if value > 1 else f"{100 * (1 / value - 1):.0f} % slower"
        return f"Do not speculate here: at best {change} ({best})"
    ends = f" (95 % interval over prompts: {low:.2f} to {high:.2f})" if best.speedup.has_ends else ""
    return f"{best}: {value:.2f} times as fast as none{ends}"


def pays(best: Forecast) -> bool:
    return best.speedup.value >= 1 + WORTH
