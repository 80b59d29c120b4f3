"""Times passes, reads answers, and says what is fastest, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cactus_decoding.core.drafting import measuring
from cactus_decoding.core.drafting.measuring import as_steps, keep_times
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.core.files.writing import plain
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.types import AcceptanceRule
from cactus_decoding.lab.tuning.answers import WIDTHS, TunedAnswer, answer, use_fastest_threads
from cactus_decoding.lab.tuning.forecast import Forecast, forecasts

PASSES_SHARE = 0.25
"""The share of the time for timing passes; the rest is for answers."""
LEAST_SHARE = 0.04
"""The least share of the time for an answer, even if fewer prompts are answered then."""
SWEEPS = 10
"""The most times that each pass is timed."""

ProgressReport = Callable[[str, int, int, str], None]
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
    def rules(self) -> list[str]:
        return list(dict.fromkeys(rule for _, rule in self.answers[0].chances))

    def acceptance(self, draft: str, rule: str) -> float:
        """Return the mean chance that a draft's proposal is kept."""
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
            "tokens": sum(len(each.token_ids) for each in self.answers),
            "forecasts": [vars(each) for each in self.found],
        }
        return dict(plain(about))


def tune(
    target: Pair,
    drafts: Mapping[str, ModelDrafter],
    prompts: Sequence[str],
    request: Request,
    rules: Sequence[AcceptanceRule],
    *,
    seconds: float,
    thread_counts: Sequence[int],
    report: ProgressReport,
) -> Tuned:
    """Return what speculation gains on this machine, in at most about ``seconds``.

    The target's drafter is look-up. As many prompts are answered as there is time for.
    """
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
        answers.append(answer(target, drafts, prompt, request, rules, seconds=spent, copies=copies))
        besides = max(time.perf_counter() - now - spent, 0.0)
    report("Answering", len(prompts), len(prompts), "")
    found = forecasts(answers, passes, costs)
    return Tuned(passes, threads, costs, own, answers, found)


def _time(
    target: Pair,
    drafts: Mapping[str, ModelDrafter],
    request: Request,
    thread_counts: Sequence[int],
    until: float,
    report: ProgressReport,
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
    seconds_of = as_steps(measuring.time_passes(model, WIDTHS, clock, SWEEPS, until), clock, target.step_seconds)
    passes = PassTimes(tuple(seconds_of.items()))
    costs: dict[str, PassTimes] = {}
    for name, (seconds, reading, pair) in taken.items():
        costs[name] = PassTimes(passes.target, seconds, reading, pair=max(pair, seconds))
        keep_times(costs[name], model, drafts[name])
    keep_times(passes, model, target.drafter)
    report("Timing passes", total, total, "")
    return passes, threads, costs, own
