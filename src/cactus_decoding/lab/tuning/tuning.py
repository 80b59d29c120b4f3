"""Times passes, reads answers, and says what is fastest, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from cactus_decoding.core.drafting import measuring
from cactus_decoding.core.drafting.measuring import as_steps, keep_times
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.registry import LOOK_UP
from cactus_decoding.core.drafting.timing import BUSY, PassTimes
from cactus_decoding.core.files.writing import plain_json
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.lab.evaluation.intervals import FEWEST_PROBLEMS, Interval, Numbers, ratio_of_sums
from cactus_decoding.lab.evaluation.score import steps_taken
from cactus_decoding.lab.tuning.answers import TIMED_WIDTHS, TunedAnswer, record_answers, use_fastest_threads

WORTH = 0.05  # the least speedup that counts: smaller ones are within what answers and machines differ by
FEWEST_ANSWERS, FEWEST_TOKENS = FEWEST_PROBLEMS, 100  # of less nothing can be told: fewer answers have no interval


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
    return Forecast(draft, rule, k, per_second, per_step, speedup=_over_prompts(plain, seconds))


def _over_prompts(plain: Numbers, seconds: Numbers) -> Interval:
    """Return how many times as fast answers get, with an interval if there are enough of them, also if all are alike.

    Resampling says nothing of values that are all alike, but what holds of each of so many answers is their range.
    """
    found = ratio_of_sums(plain, seconds)
    alike = len(plain) >= FEWEST_PROBLEMS and not found.has_ends
    return Interval(found.value, found.value, found.value) if alike else found


def best_of(found: Sequence[Forecast], rule: str) -> Forecast:
    """Return what is fastest under a rule; look-up is judged losslessly under any."""
    speculating = [each for each in found if each.num_speculative_tokens and each.rule in (rule, "lossless")]
    own = [each for each in speculating if each.rule == rule or each.draft == LOOK_UP]
    return max(own, key=lambda each: (each.tokens_per_second, -each.num_speculative_tokens))


def speedup_sentence(best: Forecast) -> str:
    value, low, high = best.speedup
    ends = f" (95 % interval over prompts: {low:.2f} to {high:.2f})" if best.speedup.has_ends else ""
    told = f"{best}: {value:.2f} times as fast as none{ends}"
    if not best.speedup.has_ends:
        return f"It cannot be told whether to speculate here: {told}, but an interval takes {FEWEST_PROBLEMS} answers"
    if low <= 1 and high >= 1 + WORTH:
        return f"It cannot be told whether to speculate here: {told}"
    if not pays(best):
        change = f"{100 * (value - 1):.0f} % faster" if value > 1 else f"{100 * (1 / value - 1):.0f} % slower"
        return f"Do not speculate here: at best {change} ({best})"
    return told


def pays(best: Forecast) -> bool:
    """Whether a gain counts and has an interval, over enough answers, that lies above 1."""
    return best.speedup.value >= 1 + WORTH and best.speedup.low > 1


PASSES_SHARE = 0.25  # the share of the time for timing passes; the rest is for answers
LEAST_SHARE = 0.04  # the least share of the time for an answer, even if fewer prompts are answered then
SWEEPS = 10  # the most times that each pass is timed

_ProgressReport = Callable[[str, int, int, str], None]
"""Called with what is being done, how much of it is done, how much there is to do, and a remark."""


@dataclass(frozen=True)
class Tuned:
    """The passes and threads of the target and of each draft, and the forecasts; those without proposals come first."""

    times: PassTimes
    threads: int
    drafts: Mapping[str, PassTimes]
    draft_threads: Mapping[str, int]
    answers: Sequence[TunedAnswer]
    found: Sequence[Forecast]

    @property
    def num_tokens(self) -> int:
        return sum(len(each.token_ids) for each in self.answers)

    @property
    def measured(self) -> str:
        return f"{self.num_tokens} tokens of {len(self.answers)} answer{'s' * (len(self.answers) != 1)}"

    @property
    def doubt(self) -> str | None:
        """Why there is no verdict; None if there is one."""
        busy = self.times.guessed
        if len(self.answers) < FEWEST_ANSWERS or self.num_tokens < FEWEST_TOKENS:
            where = "an idle machine; this one is busy" if busy else "an idle machine"
            return (
                f"Too little was measured to tell: {self.measured}, but it takes {FEWEST_ANSWERS} answers with "
                f"{FEWEST_TOKENS} tokens; give it more time with --minutes, on {where}"
            )
        if busy:
            return (
                "The machine is too busy to tell: equal passes took times that differ much; try again when it is idle"
            )
        return None

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(rule for _, rule in self.answers[0].chances))

    def acceptance(self, draft: str, rule: str) -> float:
        return float(torch.cat([each.chances[draft, rule] for each in self.answers]).mean())

    def as_dict(self) -> dict[str, Any]:
        about: dict[str, Any] = {
            "times": self.times.as_dict(),
            "threads": self.threads,
            "drafts": [
                {
                    "draft": name,
                    "threads": self.draft_threads[name],
                    "seconds": each.draft,
                    "reading": each.reading,
                    "behind": each.lag,
                    "acceptance": {rule: self.acceptance(name, rule) for rule in self.rules},
                }
                for name, each in self.drafts.items()
            ],
            "prompts": len(self.answers),
            "tokens": self.num_tokens,
            "forecasts": [vars(each) for each in self.found],
        }
        return dict(plain_json(about))


def tune(
    target: Pair,
    drafts: Mapping[str, ModelDrafter],
    prompts: Sequence[str],
    request: Request,
    rules: Sequence[AcceptanceRule],
    *,
    seconds: float,
    thread_counts: Sequence[int],
    report: _ProgressReport,
) -> Tuned:
    began = time.perf_counter()
    until = began + PASSES_SHARE * seconds
    passes, threads, costs, own = _time(target, drafts, request, thread_counts, until, report)
    answers: list[TunedAnswer] = []
    reading = sum(each.reading for each in costs.values())
    share = passes.of(1) / (passes.of(1) + reading)  # of an answer's time that goes into its writing
    besides = 0.0  # what the last prompt took beside its answer
    for number, prompt in enumerate(prompts):
        now = time.perf_counter()
        left = began + seconds - now
        if answers and left < besides:
            break
        report("Answering", number, len(prompts), f"{max(left, 0):.0f} s left")
        spent = share * max(left / (len(prompts) - number) - besides, LEAST_SHARE * seconds)
        copies = passes.widths[-1] - 1
        answers.append(record_answers(target, drafts, prompt, request, rules, seconds=spent, copies=copies))
        besides = max(time.perf_counter() - now - spent, 0.0)
    report("Answering", len(answers), len(prompts), "" if len(answers) == len(prompts) else "the time is over")
    found = forecasts(answers, passes, costs)
    return Tuned(passes, threads, costs, own, answers, found)


def _time(
    target: Pair,
    drafts: Mapping[str, ModelDrafter],
    request: Request,
    thread_counts: Sequence[int],
    until: float,
    report: _ProgressReport,
) -> tuple[PassTimes, int, dict[str, PassTimes], dict[str, int]]:
    """Time both models' passes with their best numbers of threads, and keep the results."""
    model, total, now = target.target, 2 + len(drafts), time.perf_counter
    report("Timing passes", 0, total, "threads")
    part = (until - now()) / (3 * (1 + len(drafts)))
    counts = thread_counts if model.on_cpu else thread_counts[-1:]
    threads = use_fastest_threads(model, counts, (1, 4), now() + part)
    own = dict.fromkeys(drafts, threads)  # models of PyTorch share one number, which is the target's
    for name, draft in drafts.items():
        if draft.model_cache.threads is not None:
            own[name] = use_fastest_threads(draft.model_cache, counts, (1,), now() + part)
    # one thread's time of the processor is hardly disturbed by other work on the machine
    alone = model.on_cpu and max(threads, *own.values(), 1) == 1
    clock = time.process_time if alone else now
    taken: dict[str, tuple[float, float, float]] = {}
    for number, (name, draft) in enumerate(drafts.items(), start=1):
        report("Timing passes", number, total, name)
        taken[name] = measuring.time_drafter(model, draft, clock, request.sampling)
    report("Timing passes", total - 1, total, "")
    runs = measuring.time_runs(model, TIMED_WIDTHS, clock, SWEEPS, until)
    seconds_of = as_steps(measuring.fastest(runs), clock, target.step_seconds)
    passes = PassTimes(tuple(seconds_of.items()), source="given" if measuring.agree(runs) else BUSY)
    costs: dict[str, PassTimes] = {}
    for name, (seconds, reading, pair) in taken.items():
        costs[name] = PassTimes(passes.target, seconds, reading, passes.source, max(pair, seconds))
        keep_times(costs[name], model, drafts[name])
    keep_times(passes, model, target.drafter)
    report("Timing passes", total, total, "")
    return passes, threads, costs, own
