"""Training batches of word problems: a pure function of the seed and the batch's number, so that a run can resume."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cactus_decoding.zoo.word_problems import word_problems

EQUALS, ANSWER = "Ġ=", "####"
_BATCHES_PER_CHUNK = 16


class Problem(Protocol):
    """What a row of a batch is made of."""

    prompt: str  # what the model is given
    solution: str  # what it learns to write
    num_steps: int  # lines before the last one


ProblemSource = Callable[[int], Iterator[Problem]]
"""Problems without end, from a seed."""


def training_problems(seed: int, habit: float = 0.0) -> Iterator[Problem]:
    """Yield the problems that the bundled models learn from; ``habit`` is that of `word_problems`."""
    return word_problems("train", seed=seed, habit=habit)


def batch(
    tokenizer: PreTrainedTokenizerBase,
    seed: int,
    index: int,
    size: int,
    emphasis: float = 1.0,
    drills: bool = False,
    long: bool = False,
    all_numbers: bool = False,
    source: ProblemSource = training_problems,
) -> tuple[Tensor, Tensor]:
    """Return ``(input_ids, weights)`` of one batch, each ``[size, length]``.

    A token's weight in the loss is 0 in questions and padding, 1 in solutions, and ``emphasis`` where a result is being
    written, or with ``all_numbers`` an operand too. The weight depends only on what comes before the token, so that the
    best prediction stays the true law.

    Problems are drawn in chunks of several batches and sorted by length inside a chunk, which keeps padding small. With
    ``drills``, every third row is a list of bare equations instead, of which only the results count. With ``long``, two
    of three problems take at least four steps. ``source`` gives the problems of a chunk by its seed.
    """
    chunk, position = divmod(index, _BATCHES_PER_CHUNK)
    rows = list(_chunk(tokenizer, seed, chunk, size, long, source)[position])
    if drills:
        rows[::3] = _drill_rows(tokenizer, seed, index, len(rows[::3]))
    length = max(len(ids) for ids, _ in rows)
    input_ids = torch.full((size, length), tokenizer.pad_token_id, dtype=torch.long)
    weights = torch.zeros((size, length))
    known = _number_tokens(tokenizer)
    for row, (ids, prompt_length) in enumerate(rows):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        writing = False
        for place in range(max(prompt_length, 1), len(ids)):
            before = ids[place - 1]
            if all_numbers:
                writing = known.writes_any(before, ids[place])
            else:
                writing = before in known.results or (writing and before in known.digits)
            weights[row, place] = emphasis if writing else float(prompt_length > 0)
    return input_ids, weights


@lru_cache(maxsize=2)
def _chunk(
    tokenizer: PreTrainedTokenizerBase, seed: int, chunk: int, size: int, long: bool, source: ProblemSource
) -> list[list[tuple[list[int], int]]]:
    count = size * _BATCHES_PER_CHUNK
    stream = source(seed * 1_000_003 + chunk)
    problems = list(islice(stream, count // 3 if long else count))
    problems += islice((p for p in stream if p.num_steps >= 4), count - len(problems))
    prompts = tokenizer([p.prompt for p in problems]).input_ids
    texts = tokenizer([f"{p.prompt} {p.solution}{tokenizer.eos_token}" for p in problems]).input_ids
    rows = sorted(((ids, len(prompt)) for ids, prompt in zip(texts, prompts, strict=True)), key=lambda row: len(row[0]))
    batches = [rows[i : i + size] for i in range(0, len(rows), size)]
    random.Random(chunk).shuffle(batches)
    return batches


_EQUATION = re.compile(r"\d+ ([-+*/]) \d+ = \d+")
_EQUATIONS_PER_ROW = 10


def _drill_rows(tokenizer: PreTrainedTokenizerBase, seed: int, index: int, count: int) -> list[tuple[list[int], int]]:
    """Return rows of equations as they occur in solutions, each operator equally often."""
    waiting: dict[str, list[str]] = {operator: [] for operator in "+-*/"}
    wanted = count * _EQUATIONS_PER_ROW // len(waiting)
    for problem in word_problems("train", seed=(seed + 1) * 7_000_003 + index):
        for found in _EQUATION.finditer(problem.solution):
            waiting[found.group(1)].append(found.group())
        if all(len(equations) >= wanted for equations in waiting.values()):
            break
    equations = [equation for each in waiting.values() for equation in each[:wanted]]
    random.Random(index).shuffle(equations)
    texts = [f" {'. '.join(equations[i::count])}." for i in range(count)]
    return [(ids, 0) for ids in tokenizer(texts).input_ids]


class _NumberTokens(NamedTuple):
    results: frozenset[int]
    operators: frozenset[int]
    digits: frozenset[int]
    leads: frozenset[int]

    def writes_any(self, before: int, token: int) -> bool:
        """Say whether a number is being written: within one, after an operator, or after words that call for one.

        Only at the beginning of a sentence may either a digit or a word follow; elsewhere what comes before decides.
        """
        within = before in self.digits or before in self.operators or before in self.results
        return within or (token in self.digits and before not in self.leads)


@lru_cache(maxsize=2)
def _number_tokens(tokenizer: PreTrainedTokenizerBase) -> _NumberTokens:
    digits = [f"{space}{digit}" for space in ("", "Ġ") for digit in range(10)]
    leads = [":", ",", "Ċ", *(f"{space}{word}" for space in ("", "Ġ") for word in ("Then", "So", "Now", "Therefore"))]
    named = ([EQUALS, ANSWER], [f"Ġ{operator}" for operator in "+-*/"], digits, leads)
    return _NumberTokens(*(frozenset(tokenizer.convert_tokens_to_ids(tokens)) for tokens in named))


def texts(seed: int, count: int) -> Iterator[str]:
    """Yield whole training texts, to learn a tokenizer from."""
    for problem in islice(word_problems("train", seed=seed), count):
        yield f"{problem.prompt} {problem.solution}"
