"""From what rules accept and cost to a recommendation: the best rule within a limit, if lossless is not better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.rules.family import Family, round_to
from cactus_decoding.lab.evaluation.intervals import Interval, Numbers, bootstrapped, resampled_medians, resampled_sums
from cactus_decoding.lab.frontier.frontier import Frontier, Point
from cactus_decoding.lab.frontier.relaxations import EVERYWHERE, LOSSLESS, Relaxation
from cactus_decoding.lab.frontier.step_times import RelaxationAtLength

_GRID = 9
_HALVINGS = 12


def loosest_within(
    measured: Frontier,
    family: Family,
    max_nats: float,
    policy: RelaxationPolicy = EVERYWHERE,
    report: Callable[[str], None] = lambda rule: None,
) -> Point | None:
    """Return a family's point of highest acceptance whose mean KL is at most ``max_nats``; None where none is.

    The range is scanned first, because not every family gets dearer with its knob; from the best knob of the scan the
    bracket to the next dearer one is halved.
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
    """Estimated wall time per token of one relaxation at each draft length.

    Seconds per token have intervals over problems and timing rounds; length 0 is the target alone.
    """

    relaxation: Relaxation
    lengths: tuple[int, ...]
    seconds: tuple[Interval, ...]

    @property
    def best(self) -> int:
        """The place of the length with the least time per token."""
        return min(range(len(self.lengths)), key=lambda i: self.seconds[i].value)

    @property
    def best_length(self) -> int:
        """The length with the least time per token."""
        return self.lengths[self.best]

    def as_dict(self) -> dict[str, Any]:
        """Return it, for JSON."""
        rows = [
            {"num_speculative_tokens": n, "seconds_per_token": list(s)}
            for n, s in zip(self.lengths, self.seconds, strict=True)
        ]
        return self.relaxation.as_dict() | {"best_length": self.best_length, "lengths": rows}


@dataclass(frozen=True, eq=False)
class Speeds:
    """Times per token of lossless and of one other rule, from the same problems and the same timing rounds.

    ``gain`` is time per token of lossless at its best length over that of the rule at its own: above 1 the rule is
    faster. ``gain_at_current`` has both at the length in use now, ``gain_of_length`` lossless there over lossless at
    its best.
    """

    lossless: Speed
    rule: Speed
    gain: Interval
    gain_at_current: Interval
    gain_of_length: Interval


def speeds(
    measured: Frontier, relaxation: Relaxation, times: Mapping[RelaxationAtLength, Numbers], current: int
) -> Speeds:
    """Return estimated times per token: a step's measured time over the tokens expected of it.

    ``times`` are those of `time_steps` for both at the same lengths, the one in use now (``current``) among them.
    """
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
    """Return what to use: the rule at its best length where it is faster beyond chance, else lossless at its own."""
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
    """Say which rule to take, and why."""
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
    """Return the ends of an interval in brackets; nothing where it has none."""
    return f" (95 %: {interval.low:{digits}} to {interval.high:{digits}})" if interval.has_ends else ""


def as_result(
    candidates: Sequence[Point], chosen: Point | None, compared: Speeds | None, text: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the result file of `cactus calibrate --max-nats`."""
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
