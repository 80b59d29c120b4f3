"""What answers would take on hardware that somebody else has timed: a forecast, from passes and recorded acceptance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding.core.files.jsonl import read_json
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.frontier.frontier import Point

KEYS = ("name", "source", "pass_ms", "draft_ms", "step_ms")
NOTE = (
    "Times are forecast, not measured: every rule's answers are taken to be equally long, and a step to cost what the "
    "profile says whatever is kept. Intervals are those of acceptance alone. 'cactus eval' measures."
)


@dataclass(frozen=True)
class CostProfile:
    """What passes cost on a machine, in milliseconds.

    A step of k proposals takes ``step_ms[k]`` where it was timed as a whole, else a pass of the target over k + 1
    tokens and k tokens of the draft. Between the sizes that were timed costs are interpolated, and beyond them unknown.

    Attributes:
        name: of the models and the hardware.
        source: who published it, and how it was measured.
        pass_ms: a pass of the target over 1, … tokens; that over one is needed.
        draft_ms: a token of the draft; None if only steps were timed.
        step_ms: whole steps by their number of proposals.
    """

    name: str
    source: str
    pass_ms: Mapping[int, float]
    draft_ms: float | None = None
    step_ms: Mapping[int, float] = field(default_factory=dict)

    @property
    def alone(self) -> float:
        return self.pass_ms[1]

    def step(self, proposals: int) -> float:
        """Return what a step takes; NaN where that is not known."""
        if proposals == 0:
            return self.alone
        if self.step_ms:
            return _between(self.step_ms, proposals)
        return math.nan if self.draft_ms is None else _between(self.pass_ms, proposals + 1) + proposals * self.draft_ms

    def flat(self) -> CostProfile | None:
        """Return the profile if a pass over several tokens took as long as over one; None without a draft's time."""
        if self.draft_ms is None:
            return None
        most = max([*self.pass_ms, *(each + 1 for each in self.step_ms)])
        return CostProfile(self.name, self.source, dict.fromkeys((1, max(most, 2)), self.alone), self.draft_ms)


def _between(known: Mapping[int, float], size: int) -> float:
    sizes = sorted(known)
    return float(np.interp(size, sizes, [known[each] for each in sizes], left=math.nan, right=math.nan))


@dataclass(frozen=True)
class Forecast:
    """What a rule's answers would take with its best number of proposals; intervals are those of acceptance alone."""

    rule: str
    num_speculative_tokens: int
    seconds_per_answer: Interval
    tokens_per_second: float
    times_as_fast_as_alone: float

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "seconds_per_answer": list(self.seconds_per_answer)}


def forecast(
    rule: str, tokens_per_step: Mapping[int, Interval], profile: CostProfile, answer_tokens: float
) -> Forecast | None:
    r"""Return the least time of an answer, over the numbers of proposals; None where no step's cost is known.

    .. math:: t = N \min_k \frac{c(k)}{\tau(k)}

    with N the tokens of an answer, c(k) what a step of k proposals takes, and tau(k) the tokens that it brings.

    Args:
        rule: what is forecast.
        tokens_per_step: by the number of proposals.
        profile: of the machine.
        answer_tokens: N.

    Example:
        >>> profile = CostProfile("ours", "timed here", {1: 10.0, 8: 12.0}, draft_ms=1.0)
        >>> found = forecast("lossless", {3: Interval(2.0, 1.9, 2.1), 7: Interval(4.0, 3.8, 4.2)}, profile, 100)
        >>> found.num_speculative_tokens, round(found.seconds_per_answer.value, 3)
        (7, 0.475)
    """
    taken = {k: profile.step(k) / each.value for k, each in tokens_per_step.items()}
    taken = {k: each for k, each in taken.items() if math.isfinite(each)}
    if not taken:
        return None
    best = min(taken, key=taken.__getitem__)
    step, tokens = profile.step(best) * answer_tokens / 1000, tokens_per_step[best]
    seconds = Interval(step / tokens.value, step / tokens.high, step / tokens.low)
    return Forecast(rule, best, seconds, answer_tokens / seconds.value, profile.alone / taken[best])


def read_profiles(path: Path) -> list[CostProfile]:
    """Return the profiles of a file: a JSON object of ``profiles``, each with the attributes of a `CostProfile`.

    Raises `ValueError` that says which profile is wrong, and how.
    """
    value = read_json(path)
    listed = value.get("profiles") if isinstance(value, dict) else None
    if not isinstance(listed, list) or not listed:
        raise ValueError(f"{path}: a file of costs must be a JSON object with a list of 'profiles'")
    return [_profile(each, f"{path}, profile {number}") for number, each in enumerate(listed, start=1)]


def _profile(value: Any, where: str) -> CostProfile:
    if not isinstance(value, dict) or not {"name", "source", "pass_ms"} <= set(value) <= set(KEYS):
        raise ValueError(
            f"{where}: a profile must have name, source and pass_ms, and may have draft_ms and step_ms; it has "
            f"{sorted(value) if isinstance(value, dict) else value!r}"
        )
    passes, steps = (_by_size(value.get(name, {}), f"{where}: {name}") for name in ("pass_ms", "step_ms"))
    draft = value.get("draft_ms")
    if 1 not in passes:
        raise ValueError(f"{where}: pass_ms must have the time of a pass over 1 token, but has {sorted(passes)}")
    if draft is None and not steps:
        raise ValueError(f"{where}: draft_ms or step_ms must be given, or nothing is known of a step")
    return CostProfile(
        str(value["name"]),
        str(value["source"]),
        passes,
        None if draft is None else _time(draft, f"{where}: draft_ms"),
        steps,
    )


def _by_size(value: Any, where: str) -> dict[int, float]:
    if not isinstance(value, dict) or not all(size.isdecimal() and int(size) > 0 for size in value):
        raise ValueError(f"{where} must be an object of times by whole numbers above 0, but is {value!r}")
    return {int(size): _time(each, f"{where}, {size}") for size, each in value.items()}


def _time(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{where} must be milliseconds above 0, but is {value!r}")
    return float(value)


def named(profiles: Sequence[CostProfile]) -> dict[str, CostProfile]:
    """Return each profile as it is, and as if passes were flat where that differs, by what a table calls it."""
    found = {}
    for each in profiles:
        found[each.name] = each
        flat = each.flat()
        if flat is not None and any(time != each.alone for time in each.pass_ms.values()):
            found[f"{each.name}, flat passes"] = flat
    return found


def forecasts(
    points: Sequence[Point], profiles: Sequence[CostProfile], answer_tokens: int
) -> dict[str, list[Forecast]]:
    """Return, by profile, what answers would take under each measured rule, where a step's cost is known."""
    rules = {str(each.relaxation): each.tokens_per_step for each in points if each.family != "limit"}
    steps = {rule: dict(enumerate(tokens, start=1)) for rule, tokens in rules.items()}
    return {
        name: [found for rule, tokens in steps.items() if (found := forecast(rule, tokens, profile, answer_tokens))]
        for name, profile in named(profiles).items()
    }


def forecast_result(
    found: Mapping[str, Sequence[Forecast]], profiles: Sequence[CostProfile], answer_tokens: int
) -> dict[str, Any]:
    """Return what a result file says of forecasts."""
    return {
        "note": NOTE, "answer_tokens": answer_tokens, "sources": {each.name: each.source for each in profiles},
        "profiles": {name: [each.as_dict() for each in of] for name, of in found.items()},
    }  # fmt: skip
