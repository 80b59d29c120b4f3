"""Speculative sampling by its definition, on the tiny models: the engine that mutants are made of."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cactus_conform.engine import OPTIONAL, Engine, EngineAnswer, Query, Sampling
from cactus_conform.processing import Rows
from cactus_conform.truth import Truth, Wanted

Decoding = Generator[Wanted, Rows, EngineAnswer]  # one response: it asks for probabilities, and returns the answer


def draw(weights: Rows, uniform: float) -> int:
    """Return the token that a number in [0, 1) picks from weights, never one of weight zero."""
    sums = weights.cumsum()
    picked = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    return min(picked, int(np.nonzero(weights)[0][-1]))


class Numbers:
    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.kept: list[Any] = []  # what mutants remember of a step

    def __call__(self) -> float:
        return float(self._generator.random())

    def gumbels(self, count: int) -> Rows:
        return self._generator.gumbel(size=count)


class Reference(Engine):
    """A right engine, whose steps are small methods, so that a mutant changes one of them.

    Example:
        >>> engine = Reference()
        >>> engine.answer([Query((1, 2, 3), Sampling(temperature=0.0, max_tokens=2), seed=0)])[0].token_ids
        (2, 7)
    """

    name = "reference"
    supports = frozenset({*OPTIONAL, "batch", "logprobs", "repeats"})

    def __init__(self, truth: Truth | None = None) -> None:
        self.truth = truth or Truth()
        self.cancelled: tuple[int, ...] | None = None

    def answer(self, queries: Sequence[Query]) -> list[EngineAnswer]:
        running = [self.decode(query, numbers) for query, numbers in zip(queries, self.numbers(queries), strict=True)]
        wanted = {index: next(each) for index, each in enumerate(running)}
        answers: dict[int, EngineAnswer] = {}
        while wanted:
            rows = self.truth.next_rows(list(wanted.values()))
            following: dict[int, Wanted] = {}
            for index, row in zip(wanted, rows, strict=True):
                try:
                    following[index] = running[index].send(row)
                except StopIteration as end:
                    answers[index] = end.value
            wanted = following
        return [answers[index] for index in range(len(queries))]

    def numbers(self, queries: Sequence[Query]) -> list[Numbers]:
        return [Numbers(query.seed) for query in queries]

    def decode(self, query: Query, numbers: Numbers) -> Decoding:
        sampling, start = query.sampling, len(query.prompt)
        text, output, logprobs = self.read(query), list[int](), list[float]()
        accepted = 0
        while True:
            drafted, draft_rows = list[int](), list[Rows]()
            numbers.kept.clear()
            for _ in range(self.room(sampling, len(output))):
                row = yield Wanted(sampling.draft, (*text, *drafted), start, self.drawn(sampling))
                token = self.draw(row, numbers)
                if not self.proposes(row, token):
                    break
                drafted.append(token)
                draft_rows.append((yield Wanted(sampling.draft, (*text, *drafted[:-1]), start, self.tested(sampling))))
            emitted, recovered, rejected = list[int](), None, None
            for place in range(len(drafted) + 1):
                target = yield self.target(text, drafted[:place], start, sampling)
                if place == len(drafted):
                    bonus = yield self.bonus(text, drafted, start, sampling)
                    recovered = draw(bonus, numbers())
                    logprobs.append(math.log(max(target[recovered], 1e-300)))
                    break
                token, draft = drafted[place], draft_rows[place]
                uniform = self.first(numbers, place)
                if self.accepts(uniform, target, draft, token, sampling):
                    emitted.append(token)
                    logprobs.append(math.log(max(self.reported(target, draft)[token], 1e-300)))
                    continue
                rejected = token
                recovered = self.recover(self.recovery(target, draft, token), uniform, numbers, place)
                logprobs.append(math.log(max(target[recovered], 1e-300)))
                break
            assert recovered is not None
            text = self.keep(text, emitted, recovered, rejected)
            for place, token in enumerate([*emitted, recovered]):
                output.append(token)
                accepted += place < len(emitted)
                if token in sampling.ends and self.stops(output, place < len(emitted)):
                    return EngineAnswer(tuple(output), tuple(logprobs[: len(output)]), accepted)
            if len(output) >= sampling.max_tokens:
                return EngineAnswer(tuple(output), tuple(logprobs[: len(output)]), accepted)

    def read(self, query: Query) -> tuple[int, ...]:
        return query.prompt

    def room(self, sampling: Sampling, length: int) -> int:
        return min(sampling.num_speculative_tokens, sampling.max_tokens - length - 1)

    def proposes(self, row: Rows, token: int) -> bool:
        return True

    def drawn(self, sampling: Sampling) -> Sampling:
        return sampling

    def draw(self, row: Rows, numbers: Numbers) -> int:
        return draw(row, numbers())

    def tested(self, sampling: Sampling) -> Sampling:
        return sampling

    def target(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        return Wanted("target", (*text, *drafted), start, sampling)

    def bonus(self, text: tuple[int, ...], drafted: list[int], start: int, sampling: Sampling) -> Wanted:
        """Return the probabilities that a token is drawn from after all proposals were kept."""
        return self.target(text, drafted, start, sampling)

    def accepts(self, uniform: float, target: Rows, draft: Rows, token: int, sampling: Sampling) -> bool:
        return bool(uniform * draft[token] < target[token])

    def recovery(self, target: Rows, draft: Rows, token: int) -> Rows:
        residual = np.maximum(target - draft, 0)
        return residual if residual.sum() > 1e-12 else target

    def first(self, numbers: Numbers, place: int) -> float:
        """Return the number that tests the proposal at a place of the step."""
        return numbers()

    def recover(self, weights: Rows, uniform: float, numbers: Numbers, place: int) -> int:
        """Draw the token that comes after a rejection by ``uniform``."""
        return draw(weights, numbers())

    def reported(self, target: Rows, draft: Rows) -> Rows:
        return target

    def keep(self, text: tuple[int, ...], emitted: list[int], recovered: int, rejected: int | None) -> tuple[int, ...]:
        return (*text, *emitted, recovered)

    def stops(self, output: list[int], drafted: bool) -> bool:
        """Whether a stop token ends the output, which mutants change in place."""
        return True


def plain(sampling: Sampling) -> Sampling:
    kept = ("stop_token_ids", "max_tokens", "draft", "num_speculative_tokens")
    return replace(Sampling(), **{name: getattr(sampling, name) for name in kept})
