"""Runs lossless speculation on problems and keeps the rows of every step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.generate import stream
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.sampling.params import LARGE_VOCABULARY
from cactus_decoding.core.types import Outcome
from cactus_decoding.lab.frontier.recorded_rows import (
    MERGED_TAIL,
    PackedRows,
    RecordedRows,
    Shortened,
    join,
    pack_rows,
    pack_shortened,
    shortened,
    step_of_proposals,
)

_BLOCKS_AT_ONCE = 64  # blocks are packed in batches, so that few truncated rows are in memory at full width


@dataclass
class Recording:
    """What has been recorded so far, from the outcomes of steps.

    In rows of a large vocabulary the last tokens, with at most ``tail`` in either row, are merged; see `shortened`.
    """

    tail: float = 0.0
    vocabulary: int = 0
    target: list[Tensor] = field(default_factory=list)
    draft: list[Tensor] = field(default_factory=list)
    short: list[Shortened] = field(default_factory=list)
    packed: list[tuple[PackedRows, PackedRows]] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    visited: list[bool] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    problem: list[int] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)

    def add(self, problem: int, outcome: Outcome, stop_token_ids: Collection[int]) -> None:
        """Add a step of the response to a problem, up to a token that ends the response."""
        proposal, rows = outcome.proposal, outcome.rows
        stops = [place for place, token in enumerate(proposal.token_ids) if token in stop_token_ids]
        drafted = proposal.token_ids[: stops[0] + 1] if stops else proposal.token_ids
        self.vocabulary = rows.logits.shape[-1]
        self.drafted += drafted
        self.visited += [place < len(outcome.visits) for place in range(len(drafted))]
        self.counts.append(len(drafted))
        self.problem.append(problem)
        self.ends.append(bool(stops))
        if drafted:
            if proposal.probs is None:
                draft = functional.one_hot(torch.tensor(drafted, dtype=torch.long), self.vocabulary)
            else:
                draft = proposal.probs[: len(drafted)]
            target, draft = rows.target_along(len(drafted)).float().cpu(), draft.float().cpu()
            if self.tail and self.vocabulary >= LARGE_VOCABULARY:
                self.short += map(partial(shortened, tail=self.tail), target, draft, drafted)
            else:
                self.target.append(target)
                self.draft.append(draft)
        if max(len(self.target), len(self.short)) >= _BLOCKS_AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        if self.target:
            self.packed.append((pack_rows(self.target, self.vocabulary), pack_rows(self.draft, self.vocabulary)))
            self.target, self.draft = [], []
        if self.short:
            self.packed.append(pack_shortened(self.short, self.vocabulary))
            self.short = []

    @property
    def bytes(self) -> int:
        return sum(rows.probs.nbytes * (3 if rows.sparse else 1) for pair in self.packed for rows in pair)

    def rows(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> RecordedRows:
        self._pack()
        return RecordedRows(
            join([target for target, _ in self.packed], self.vocabulary),
            join([draft for _, draft in self.packed], self.vocabulary),
            torch.tensor(self.drafted, dtype=torch.int32),
            torch.tensor(self.visited, dtype=torch.bool),
            step_of_proposals(torch.tensor(self.counts, dtype=torch.long)),
            torch.tensor(self.problem, dtype=torch.long),
            torch.tensor(self.ends, dtype=torch.bool),
            settings,
            provenance,
        )


def record_rows(
    pair: Pair,
    prompts: Sequence[str],
    request: Request,
    *,
    positions: int,
    memory: int = 2**31,
    settings: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> RecordedRows:
    """Return the rows of lossless steps on prompts, until enough positions have been visited.

    Problem i is answered with the request's seed + i. Recording stops early if the rows take ``memory`` bytes. Of a
    large vocabulary without truncation, the last `MERGED_TAIL` of each row is merged; see `shortened`.
    """
    if request.sampling.temperature == 0:
        raise ValueError(
            "the temperature must be above 0: at 0 every distribution is one-hot, and every rule of a divergence "
            "accepts the target's most likely token only"
        )
    if not isinstance(request.rule, Lossless):
        raise ValueError(f"rows are recorded of lossless steps, but the rule is {request.rule}")
    if request.verification != "token":
        raise ValueError(
            "rows are recorded where one proposal is judged after another, so verification must be 'token', but is "
            f"{request.verification!r}"
        )
    request.check_chain("a recording of rows")
    tail = 0.0 if request.sampling.truncates else MERGED_TAIL
    recording, stop_token_ids = Recording(tail), frozenset(pair.stop_token_ids)
    for number, prompt in enumerate(prompts):
        if sum(recording.visited) >= positions:
            break
        for outcome in stream(pair, prompt, request.replace(seed=(request.seed or 0) + number)):
            recording.add(number, outcome, stop_token_ids)
            done = sum(recording.visited)
            report(min(done, positions))
            if done >= positions or recording.bytes >= memory:
                break
        if recording.bytes >= memory:
            break
    if not any(recording.visited):
        raise ValueError("the draft proposed nothing on these problems, so there is no position to look at")
    return recording.rows(settings or {}, provenance or {})
