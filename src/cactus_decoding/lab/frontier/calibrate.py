"""From what rules accept and cost to a recommendation: the best rule within a limit, unless lossless is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.rules.base import Family, round_to
from cactus_decoding.lab.evaluation.intervals import (
    Interval,
    Numbers,
    bootstrapped,
    problems_to_show,
    resampled_medians,
    resampled_sums,
)
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import RunSummary
from cactus_decoding.lab.frontier.frontier import Frontier, Point
from cactus_decoding.lab.frontier.recorded_rows import RelaxationAtLength
from cactus_decoding.lab.frontier.relaxations import EVERYWHERE, LOSSLESS, Relaxation

_GRID = 9
_HALVINGS = 12


def loosest_within(
    measured: Frontier,
    family: Family,
    max_nats: float,
    policy: RelaxationPolicy = EVERYWHERE,
    report: Callable[[str], None] = lambda rule: None,
) -> Point | None:
    """Return a family's point of highest acceptance whose mean KL is at most ``max_nats``; None if there is none.

    The range is scanned first, because not every family costs more at a larger knob. Then the interval between the best
    knob of the scan and the next, more expensive one is halved repeatedly.
    """
    points: list[Point] = []
    for knob in family.knobs(_GRID):
        points.append(measured.measure(family.spell(knob), family.name, knob, policy))
        report(points[-1].rule)
    within = [place for place, point in enumerate(points) if point.kl.value <= max_nats]
    if not within:
        return None
    place = max(within, key=lambda i: points[i].acceptance.value)
    best = points[place]
    if place + 1 == len(points) or points[place + 1].kl.value <= max_nats:
        return best
    low, high = family.knobs(_GRID)[place : place + 2]
    for _ in range(_HALVINGS):
        middle = float(round((low + high) / 2)) if family.whole else round_to(math.sqrt(low * high), 5)
        if not low < middle < high:
            break
        point = measured.measure(family.spell(middle), family.name, middle, policy)
        report(point.rule)
        if point.kl.value <= max_nats:
            low = middle
            best = max(best, point, key=lambda each: each.acceptance.value)
        else:
            high = middle
    return best


@dataclass(frozen=True)
class Speed:
    """Estimated wall time per token of one relaxation at each draft length."""

    relaxation: Relaxation
    lengths: tuple[int, ...]
    seconds: tuple[Interval, ...]

    @property
    def best(self) -> int:
        return min(range(len(self.lengths)), key=lambda i: self.seconds[i].value)

    @property
    def best_length(self) -> int:
        return self.lengths[self.best]

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {"num_speculative_tokens": n, "seconds_per_token": list(s)}
            for n, s in zip(self.lengths, self.seconds, strict=True)
        ]
        return self.relaxation.as_dict() | {"best_length": self.best_length, "lengths": rows}


@dataclass(frozen=True, eq=False)
class Speeds:
    """Times per token of lossless and of one other rule, from the same problems and the same timing rounds."""

    lossless: Speed
    rule: Speed
    gain: Interval  # lossless at its best length ÷ the rule at its own
    gain_at_current: Interval  # both at the length in use now
    gain_of_length: Interval  # lossless at the length in use now ÷ lossless at its best


def speeds(
    measured: Frontier, relaxation: Relaxation, times: Mapping[RelaxationAtLength, Numbers], current: int
) -> Speeds:
    """Return estimated times per token: a step's measured time over its expected tokens."""
    found, samples = {}, {}
    sampled = min(measured.rows.problems, *(len(seconds) for seconds in times.values()))
    for name in (LOSSLESS, relaxation):
        lengths = sorted(length for timed, length in times if timed == name)
        tokens, steps = measured.tokens(measured.chances(*name)), measured.steps
        columns = torch.cat([steps.unsqueeze(1), tokens, steps.unsqueeze(1)], dim=1).numpy()
        seconds = np.stack([times[name, length] for length in lengths], axis=1)
        samples[name] = resampled_medians(seconds) / _ratios(resampled_sums(columns))[:, lengths]
        values = np.median(seconds, axis=0) / _ratios(columns.sum(0, keepdims=True))[0, lengths]
        intervals = (bootstrapped(float(v), sample, sampled) for v, sample in zip(values, samples[name].T, strict=True))
        found[name] = Speed(name, tuple(lengths), tuple(intervals))
    lossless, other = found[LOSSLESS], found[relaxation]
    place = lossless.lengths.index(current)

    def gain(above: tuple[Speed, int], below: tuple[Speed, int]) -> Interval:
        (slow, i), (fast, j) = above, below
        return bootstrapped(
            slow.seconds[i].value / fast.seconds[j].value,
            samples[slow.relaxation][:, i] / samples[fast.relaxation][:, j],
            sampled,
        )

    return Speeds(
        lossless,
        other,
        gain((lossless, lossless.best), (other, other.best)),
        gain((lossless, place), (other, place)),
        gain((lossless, place), (lossless, lossless.best)),
    )


def recommended(compared: Speeds | None, current: int) -> RelaxationAtLength:
    """Return what to use: the rule at its best length if it is faster beyond chance, else lossless at its own."""
    if compared is None:
        return LOSSLESS, current
    best = compared.rule if compared.gain.low > 1 else compared.lossless
    return best.relaxation, best.best_length


def _ratios(sums: Numbers) -> Numbers:
    """Return tokens per step for 0, 1, 2, … proposals from columns whose last is the number of steps."""
    ratios: Numbers = sums[:, :-1] / sums[:, -1:]
    return ratios


def recommendation(
    chosen: Point | None, lossless: Point, max_nats: float, compared: Speeds | None, current: int
) -> str:
    if chosen is None or compared is None or chosen.acceptance.value <= lossless.acceptance.value:
        return f"Lossless: no rule accepts more than lossless within {max_nats:g} nats per position."
    best, gain = compared.lossless, compared.gain
    longer = "longer" if best.best_length > current else "shorter"
    tuned = f"{best.best_length} proposals per step, its best length"
    if best.best_length == 0:
        tuned = "no proposals, the target alone"
    if gain.low > 1:
        nats = f"{chosen.kl.value:.4g} nats per position{_ends(chosen.kl, '.4g')}"
        text = (
            f"{chosen.relaxation} with {compared.rule.best_length} proposals per step: estimated {_times(gain)} as "
            f"fast per token as lossless with {tuned}, for {nats}."
        )
    else:
        text = f"Lossless with {tuned}: {chosen.relaxation}, the best rule within the limit, is estimated "
        text += f"{_times(gain)} as "
        text += "fast, so it is slower." if gain.high < 1 else "fast, which chance may explain."
    if best.best_length != current and compared.gain_of_length.low > 1:
        text += (
            f" A {longer} draft alone makes lossless {_times(compared.gain_of_length)} as fast as with the {current} "
            "proposals in use now."
        )
    return text


def _times(ratio: Interval) -> str:
    return f"{ratio.value:.3f} times{_ends(ratio, '.3f') or ' (too few problems or timings to tell)'}"


def _ends(interval: Interval, digits: str) -> str:
    return f" (95 %: {interval.low:{digits}} to {interval.high:{digits}})" if interval.has_ends else ""


def as_result(
    candidates: Sequence[Point], chosen: Point | None, compared: Speeds | None, text: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    speed: dict[str, Any] | None = None
    if compared is not None:
        speed = {name: list(getattr(compared, name)) for name in ("gain", "gain_at_current", "gain_of_length")}
        speed |= {"lossless": compared.lossless.as_dict(), "rule": compared.rule.as_dict()}
    return {
        "schema": 1,
        "kind": "calibration",
        "verdict": text,
        "best_within_limit": None if chosen is None else str(chosen.relaxation),
        "candidates": [point.as_dict() for point in candidates],
        "speed": speed,
    } | dict(about)


@dataclass(frozen=True, eq=False)
class Advice:
    """What the results of one task, pair and sampling say.

    The baseline is lossless at its own best draft length. Candidates are sorted by time, fastest first; ``within`` are
    those whose score drop is within the limit with confidence, and ``chosen`` is the fastest of these.
    """

    config: RunConfig
    baseline: RunSummary
    candidates: tuple[RunSummary, ...]
    within: tuple[RunSummary, ...]
    chosen: RunSummary | None
    faster: bool
    text: str

    @property
    def recommended(self) -> RunSummary:
        """What to use: the fastest rule whose score holds if it is faster beyond chance, else the baseline."""
        return self.chosen if self.chosen is not None and self.faster else self.baseline


def advise(summaries: Iterable[RunSummary], task: str, max_drop: float) -> list[Advice]:
    """Return advice for each pair and sampling that a task was answered with.

    A setting is within the limit if the whole 95 % interval of its score less the baseline's (`paired_difference`)
    is at or above ``-max_drop``. With too few problems no setting is.
    """
    found = list(summaries)
    ours = [summary for summary in found if summary.config.task == task]
    if not ours:
        known = ", ".join(dict.fromkeys(summary.config.task for summary in found)) or "none"
        raise ValueError(f"there is no result of task {task!r}; there are: {known}")
    if any(summary.metrics["score"] is None for summary in ours):
        raise ValueError(f"task {task!r} has no score, so a score drop says nothing about it; use --max-nats")
    groups: dict[tuple[object, ...], list[RunSummary]] = {}
    for summary in ours:
        groups.setdefault(summary.config.comparable, []).append(summary)
    return [_advise(group, max_drop) for group in groups.values()]


def _advise(summaries: Sequence[RunSummary], max_drop: float) -> Advice:
    baselines = [summary for summary in summaries if summary.group is summary.baseline]
    if not baselines:
        config = summaries[0].config
        raise ValueError(
            f"task {config.task!r} with {config.target} and {config.draft} has no lossless run to compare with; add "
            "--rule lossless to cactus eval"
        )
    alone = [summary for summary in summaries if summary.config.num_speculative_tokens == 0]
    candidates = sorted((summary for summary in summaries if summary.config.rule != "lossless"), key=_seconds)
    within = [summary for summary in candidates if summary.known("score_difference").low >= -max_drop]
    chosen = within[0] if within else None
    compared = [each for each in baselines if chosen is not None and each.group is chosen.baseline]
    baseline = min(compared or baselines, key=_seconds)
    ratio = None if chosen is None else chosen.metrics["seconds_ratio"]
    faster = ratio is not None and ratio.high < 1
    text = _words(baseline, candidates, within, faster, max_drop)
    if alone and _seconds(alone[0]) < min(map(_seconds, [baseline, *within[:1]])):
        text += " The target alone is faster than all of them on this machine."
    return Advice(summaries[0].config, baseline, tuple(candidates), tuple(within), chosen, faster, text)


def _seconds(summary: RunSummary) -> float:
    return summary.known("seconds_per_answer").value


def _words(
    baseline: RunSummary, candidates: list[RunSummary], within: list[RunSummary], faster: bool, max_drop: float
) -> str:
    length = baseline.config.num_speculative_tokens
    length = f"{length} proposals per step" if isinstance(length, int) else f"the draft length {length}"
    take = f"Lossless with {length}, its best length: "
    if not candidates:
        return take + "no other rule was measured."
    if not within:
        problems, needed = baseline.config.problems, problems_to_show(max_drop) if max_drop else None
        why = f"no setting of another rule is known to lose at most {max_drop:g} of the score."
        if needed is None:
            return f"{take}{why} That takes a setting whose score is higher beyond chance: allow a drop above 0."
        if problems < needed:
            return f"{take}{why} {problems} problems are too few to tell: it takes at least {needed}."
        return f"{take}{why} More problems may show that one does."
    chosen = within[0]
    ratio, difference = chosen.known("seconds_ratio"), chosen.known("score_difference")
    ends = f"95 %: {ratio.low:.3f} to {ratio.high:.3f}" if ratio.has_ends else "too few problems to tell"
    spread = f"{ratio.value:.3f} times its wall time per answer ({ends})"
    score = f"score {difference.value:+.3f} (95 %: {difference.low:+.3f} to {difference.high:+.3f})"
    if faster:
        text = f"{chosen.config.label}: {spread.replace('its', 'the')} of lossless with {length}, {score}."
        if len(within) > 1:
            text += f" It is the fastest of {len(within)} settings within the limit: confirm it on fresh problems."
        return text
    why = "slower" if ratio.low > 1 else "no faster beyond chance"
    return take + f"{chosen.config.label}, the fastest setting within the limit, takes {spread}, {score}: {why}."
