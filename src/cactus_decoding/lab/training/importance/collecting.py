"""Counterfactuals: positions where the lossless test rejects, and what becomes of the answer if it had not."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from torch import Tensor

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.drafting.lengths import LengthFactory
from cactus_decoding.core.generate import stream
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.runs.results import Journal
from cactus_decoding.lab.evaluation.tasks.sources import check_not_held_out
from cactus_decoding.lab.evaluation.tasks.task import Task
from cactus_decoding.lab.training.importance.continuing import Branch, continue_alone

SMALLEST = 1e-5  # smaller probabilities are not kept
_AT_ONCE = 4
"""Problems whose positions are continued together. An interruption loses these; more would be faster by a tenth."""
SparseRow = list[list[Any]]  # token ids, and their probabilities


@dataclass(frozen=True)
class Collection:
    """What is asked of every problem: a lossless answer, and continuations from some of its positions."""

    request: Request
    continuations: int = 2  # as many with the drafted token as without it
    max_positions: int = 8  # of more, some are drawn

    def __post_init__(self) -> None:
        check_integer("continuations", self.continuations, 1)
        check_integer("max_positions", self.max_positions, 1)
        if not isinstance(self.request.rule, Lossless):
            raise ValueError(f"importance is learned along lossless answers, but the rule is {self.request.rule}")
        self.request.check_chain("learning importance")
        if isinstance(self.request.num_speculative_tokens, LengthFactory):
            raise ValueError(
                f"num_speculative_tokens must not be {str(self.request.num_speculative_tokens)!r} where importance is "
                "learned: where proposals do not pay, none would be judged; give a number"
            )
        if self.request.num_speculative_tokens.max_draft_tokens == 0:
            raise ValueError("num_speculative_tokens must be at least 1: without proposals nothing is rejected")

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"request": self.request.as_dict()}


@dataclass(frozen=True)
class Rejection:
    """A position where the lossless test rejected, along a lossless answer."""

    at: int  # tokens of the answer before it
    drafted: int
    emitted: int  # the token in its place
    target: SparseRow  # as a rule would judge it
    draft: SparseRow


def check_task(spelling: str, task: Task) -> None:
    """Raise `ValueError` for problems without a right answer, and for those that are held out."""
    check_not_held_out(spelling)
    if task.extract is None or any(problem.answer is None for problem in task.problems):
        raise ValueError(f"task {spelling!r} has problems without an answer, so no answer can get worse")


def collect(
    pair: Pair,
    task: Task,
    asked: Collection,
    journal: Journal,
    name: str,
    report: Callable[[int], None] = lambda done: None,
    *,
    batch: int = 64,
) -> list[dict[str, Any]]:
    keys = [key_of(name, asked, problem) for problem in task.problems]
    entries: dict[str, dict[str, Any]] = {}
    for key in keys:
        if found := journal.entries(key):
            entries[key] = found[0]
    report(len(entries))
    missing = [(place, key) for place, key in enumerate(keys) if key not in entries]
    for some in (missing[start : start + _AT_ONCE] for start in range(0, len(missing), _AT_ONCE)):
        for (_, key), entry in zip(some, _ask(pair, task, asked, [place for place, _ in some], batch), strict=True):
            journal.add(key, entry)
            entries[key] = entry
        report(len(entries))
    return [entries[key] for key in keys]


def key_of(name: str, asked: Collection, problem: Problem) -> str:
    """Return the journal's key of a problem's entry, which differs for other settings."""
    text = json.dumps([name, asked.as_dict(), asdict(problem)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _ask(pair: Pair, task: Task, asked: Collection, places: Sequence[int], batch: int) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    branches: list[Branch] = []
    for place in places:
        problem = task.problems[place]
        request = asked.request.replace(seed=seed_of(asked.request.seed or 0, place), stop=tuple(task.stop))
        prompt_ids: list[int] = pair.tokenizer(problem.prompt).input_ids
        answer, found = rejections(pair, problem.prompt, request)
        if len(found) > asked.max_positions:
            chosen = random.Random(seed_of(request.seed or 0, 0)).sample(range(len(found)), asked.max_positions)
            found = [found[i] for i in sorted(chosen)]
        entries.append({"problem": problem.id, "positions": [asdict(each) for each in found]})
        for each in found:
            before = prompt_ids + answer[: each.at]
            for i in range(asked.continuations):
                seed = seed_of(request.seed or 0, 1 + each.at * asked.continuations + i)
                branches += [Branch([*before, token], len(prompt_ids), seed) for token in (each.drafted, each.emitted)]
    texts = iter(
        continue_alone(
            pair,
            branches,
            asked.request.sampling,
            max_new_tokens=asked.request.max_new_tokens,
            stop=task.stop,
            batch=batch,
        )
    )
    for place, entry in zip(places, entries, strict=True):
        for position in entry["positions"]:
            position["right_with"], position["right_without"] = [], []
            for side in chain.from_iterable([["right_with", "right_without"]] * asked.continuations):
                position[side].append(bool(task.is_right(task.problems[place], next(texts))))
    return entries


def rejections(pair: Pair, prompt: str, request: Request) -> tuple[list[int], list[Rejection]]:
    """Return the tokens of a lossless answer, and the positions in it where a proposal was rejected."""
    response, found = stream(pair, prompt, request), []
    for outcome in response:
        if outcome.num_accepted == len(outcome.visits) or outcome.num_emitted <= outcome.num_accepted:
            continue  # nothing was rejected, or the answer ends before
        visit = outcome.visits[-1]
        # at temperature 0 the only rules that relax judge rows from before it
        greedy = request.sampling.temperature == 0
        judged = visit.rows.untempered_of(visit.node) if greedy else visit.target_probs
        draft: SparseRow = [[visit.token_id], [1.0]] if visit.draft_probs is None else sparse(visit.draft_probs)
        found.append(
            Rejection(
                at=len(response.token_ids) - outcome.num_emitted + outcome.num_accepted,
                drafted=visit.token_id,
                emitted=outcome.next_token,
                target=sparse(judged),
                draft=draft,
            )
        )
    return response.token_ids, found


def sparse(row: Tensor) -> SparseRow:
    ids = (row >= SMALLEST).nonzero().squeeze(1)
    return [ids.tolist(), [float(f"{probability:.6g}") for probability in row[ids].tolist()]]


def falls(entries: Sequence[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any], float, float]]:
    """Yield each position with its problem's place and the shares of continuations that the token spoils or mends."""
    for problem, entry in enumerate(entries):
        for position in entry["positions"]:
            pairs = list(zip(position["right_with"], position["right_without"], strict=True))
            worse = sum(without and not with_it for with_it, without in pairs) / len(pairs)
            better = sum(with_it and not without for with_it, without in pairs) / len(pairs)
            yield problem, position, worse, better
