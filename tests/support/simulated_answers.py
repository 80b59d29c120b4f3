"""Recorded answers, written again by a chooser of proposals, with a clock that the test turns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from cactus_decoding.core.drafting.automatic import ChoosingDrafter
from cactus_decoding.core.drafting.automatic.choosing import LengthChooser
from cactus_decoding.core.drafting.automatic.experience import Experience
from cactus_decoding.core.drafting.lookup import SuffixDrafter
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.drafting.timing import PassTimes
from cactus_decoding.core.types import DraftLength, Proposal

RECORDED = Path(__file__).with_name("recorded_answers.json")
"""Written by `benchmarks/recorded_answers.py`."""
WRONG = -7
"""A token that stands in no text."""


@dataclass(frozen=True)
class RecordedAnswer:
    """A text, at which places of the answer a draft would have written the same, and how sure it was there."""

    name: str
    prompt: list[int]
    answer: list[int]
    kept: list[bool]
    sure: list[float]
    kept_by_end: list[bool]  # where the draft has read the end of the prompt only

    def cut(self, tokens: int) -> RecordedAnswer:
        lists = (each[:tokens] for each in (self.answer, self.kept, self.sure, self.kept_by_end))
        return RecordedAnswer(self.name, self.prompt, *lists)  # type: ignore[arg-type]


def recorded() -> dict[str, tuple[PassTimes, list[RecordedAnswer]]]:
    found = {}
    for pair, told in json.loads(RECORDED.read_text()).items():
        answers = [
            RecordedAnswer(name, each["prompt"], each["answer"], [one == "1" for one in each["kept"]],
                           [sure / 100 for sure in each["sure"]],
                           [one == "1" for one in each["kept_after_end_of_prompt"]])
            for name, each in told["answers"].items()
        ]  # fmt: skip
        found[pair] = PassTimes.from_dict(told["times"], pair), answers
    return found


def row(sure: float) -> torch.Tensor:
    """Return logits whose likeliest token has so much of the probability."""
    sure = min(max(sure, 0.01), 0.99)
    others = ceil((1 - sure) / sure)
    return torch.tensor([sure, *[(1 - sure) / others] * others]).log()


@dataclass
class Clock:
    """What passes really take: seconds of times, and a factor by how much of the answer there is."""

    times: PassTimes
    load: Callable[[int], float] = lambda place: 1.0
    now: float = 0.0
    place: int = 0

    def turn(self, seconds: float) -> float:
        taken = self.load(self.place) * seconds
        self.now += taken
        return taken


class RecordedDrafter(ModelDrafter):
    """Proposes what was recorded, and turns the clock by what that takes."""

    def __init__(self, answer: RecordedAnswer, clock: Clock) -> None:
        self._answer, self._clock, self.singly, self.start = answer, clock, 0, 0
        self.max_length, self._seen = None, 0
        self._length: Any = None

    @property
    def model_cache(self) -> Any:
        return None

    def begin_response(self, target: Any, length: DraftLength) -> None:
        self._length = length

    def propose(self, token_ids: list[int], limit: int, to_probs: Any, generator: Any) -> Proposal:
        begin, answer = len(token_ids) - len(self._answer.prompt), self._answer
        unread = len(token_ids) - 1 - max(self._seen, self.start)
        self._clock.turn(self._clock.times.catching_up(unread))
        drafted, kept = list[int](), answer.kept_by_end if self.start else answer.kept
        for place in range(begin, min(begin + limit, len(answer.answer))):
            self._clock.turn(self._clock.times.draft)
            goes_on = self._length.should_continue(row(answer.sure[place]))
            if not goes_on and getattr(self._length, "unsure", None) == "discard":
                break
            drafted.append(answer.answer[place] if kept[place] else WRONG)
            if not goes_on:
                break
        right = next((i for i, token in enumerate(drafted) if token == WRONG), len(drafted))
        self._seen = len(token_ids) + min(right, max(len(drafted) - 1, 0))
        return Proposal(drafted, None)


@dataclass
class Run:
    """An answer as it was written: what each step proposed and wrote, and the time after it."""

    steps: list[tuple[str, int, int]] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    worst: float = -inf  # how much longer than plain sampling it ever took, in passes over one token


def write(answer: RecordedAnswer, chooser: LengthChooser, clock: Clock, *, drafts: bool = True) -> Run:
    """Write an answer as `decode` does; what plain sampling takes is worked out by the same clock."""
    inner = RecordedDrafter(answer, clock) if drafts else SuffixDrafter()
    drafter, length = ChoosingDrafter(inner, chooser, SuffixDrafter()), chooser
    text, end, run, plain = [*answer.prompt], len(answer.prompt) + len(answer.answer), Run(), 0.0
    whole, began = [*answer.prompt, *answer.answer], clock.now
    drafter.begin_response(None, length)
    while len(text) < end:
        clock.place = len(text) - len(answer.prompt)
        start, limit = clock.now, min(length.begin_step(), end - len(text) - 1)
        proposed = drafter.propose(text, limit, None, None).token_ids if limit > 0 else []  # type: ignore[arg-type]
        length.end_draft(len(proposed))
        drafted = clock.now
        clock.turn(clock.times.of(1 + len(proposed)))
        kept = next((i for i, token in enumerate(proposed) if token != whole[len(text) + i]), len(proposed))
        length.timed(1 + len(proposed), drafted - start, clock.now - drafted)
        length.end_step(kept)
        text = whole[: len(text) + kept + 1]
        plain += clock.load(clock.place) * clock.times.of(1) * (kept + 1)
        run.steps.append((chooser.way, len(proposed), kept + 1))
        run.tokens = len(text) - len(answer.prompt)
        pass_now = clock.load(clock.place) * clock.times.of(1)
        run.worst = max(run.worst, (clock.now - began - 1.01 * plain) / pass_now)
    run.seconds = clock.now - began
    return run


def fixed(answer: RecordedAnswer, times: PassTimes, way: str, count: int) -> float:
    """Return the seconds of an answer with the same proposals in every step: of a draft, of look-up, or of both."""
    whole, text = [*answer.prompt, *answer.answer], [*answer.prompt]
    lookup, clock = SuffixDrafter(), Clock(times)
    drafter = RecordedDrafter(answer, clock)
    drafter.begin_response(None, _Always())
    while len(text) < len(whole):
        limit = min(count, len(whole) - len(text) - 1)
        proposed: list[int] = []
        if limit > 0 and way != "draft":
            proposed = lookup.propose(text, limit, None, None).token_ids  # type: ignore[arg-type]
        if limit > 0 and (way == "draft" or (way == "both" and not proposed)):
            proposed = drafter.propose(text, limit, None, None).token_ids
        clock.turn(times.of(1 + len(proposed)))
        kept = next((i for i, token in enumerate(proposed) if token != whole[len(text) + i]), len(proposed))
        text = whole[: len(text) + kept + 1]
    return clock.now


class _Always:
    def should_continue(self, logits: torch.Tensor) -> bool:
        return True


WAYS = [("draft", 0), *((way, count) for way in ("draft", "suffix", "both") for count in (1, 2, 3, 5, 7, 11, 15))]
"""Nothing, and the fixed ways that a chooser is compared with."""


def best_fixed(answer: RecordedAnswer, times: PassTimes) -> tuple[float, tuple[str, int]]:
    return min((fixed(answer, times, *way), way) for way in WAYS)


def automatic(
    answer: RecordedAnswer, times: PassTimes, clock: Clock | None = None, experience: Experience | None = None
) -> Run:
    """Write an answer as `auto` does that learns from the clock."""
    learnt = experience or Experience(times, 15)
    chooser = LengthChooser(learnt, 15, drafts=True, num_tokens=len(answer.answer), learns=True)
    return write(answer, chooser, clock or Clock(times))


ONE_CORE = PassTimes(((1, 0.15), (2, 0.23), (3, 0.33), (4, 0.38), (8, 0.75), (16, 1.2)), 0.04, 0.014, pair=0.06)
"""Of a processor on which speculation may pay a little: 1.5 and 0.5 billion weights of four bits, one thread."""


def table() -> Iterator[str]:
    """Yield lines of a table: speeds over that of the best fixed way of each answer, and over none, by the worst."""
    yield "| answers | times | tokens | beside the best fixed way | later | beside none, at worst | later |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for pair, (own, answers) in recorded().items():
        for machine, times in {"its own": own, "one core that waits for memory": ONE_CORE}.items():
            learnt = Experience(times, 15)
            for each in answers:
                automatic(each, times, experience=learnt)
            for tokens in (48, 96, 256):
                cut = [each.cut(tokens) for each in answers]
                best = [best_fixed(each, times)[0] for each in cut]
                shown = list[str]()
                for experience in (None, learnt):
                    taken = [automatic(each, times, experience=experience).seconds for each in cut]
                    none = min(len(each.answer) * times.of(1) / now for each, now in zip(cut, taken, strict=True))
                    shown += [f"{mean(one / now for one, now in zip(best, taken, strict=True)):.3f}", f"{none:.3f}"]
                first, worst, later, worst_later = shown
                yield f"| {pair} | {machine} | {tokens} | {first} | {later} | {worst} | {worst_later} |"


if __name__ == "__main__":
    print("\n".join(table()))
