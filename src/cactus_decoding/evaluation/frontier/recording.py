"""Runs lossless speculation on problems and keeps the rows of every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cactus_decoding.evaluation.frontier.recorded_rows import Rows, empty_steps
from cactus_decoding.evaluation.frontier.row_store import RowStore, join, pack
from cactus_decoding.generation.generate import stream
from cactus_decoding.generation.pair import Pair
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.types import Decision, Proposal, Verifier

_BLOCKS_AT_ONCE = 64
"""Blocks are packed in batches: truncated rows must not wait in memory at full width."""


@dataclass
class Recording:
    """What has been recorded so far; `Recorder` adds to it."""

    vocabulary: int = 0
    target: list[Tensor] = field(default_factory=list)
    draft: list[Tensor] = field(default_factory=list)
    packed: list[tuple[RowStore, RowStore]] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    visited: list[bool] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    problem: list[int] = field(default_factory=list)
    ends: list[bool] = field(default_factory=list)

    def add(self, problem: int, target: Tensor, draft: Tensor, drafted: list[int], visited: int, ends: bool) -> None:
        """Add a step."""
        self.vocabulary = target.shape[-1]
        self.drafted += drafted
        self.visited += [place < visited for place in range(len(drafted))]
        self.counts.append(len(drafted))
        self.problem.append(problem)
        self.ends.append(ends)
        if drafted:
            self.target.append(target.float().cpu())
            self.draft.append(draft.float().cpu())
        if len(self.target) >= _BLOCKS_AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        if self.target:
            self.packed.append((pack(self.target, self.vocabulary), pack(self.draft, self.vocabulary)))
            self.target, self.draft = [], []

    @property
    def bytes(self) -> int:
        """About how much memory the packed rows take."""
        return sum(store.values.nbytes * (3 if store.sparse else 1) for pair in self.packed for store in pair)

    def rows(self, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> Rows:
        """Return all of it."""
        self._pack()
        return Rows(
            join([target for target, _ in self.packed], self.vocabulary),
            join([draft for _, draft in self.packed], self.vocabulary),
            torch.tensor(self.drafted, dtype=torch.int32),
            torch.tensor(self.visited, dtype=torch.bool),
            empty_steps(torch.tensor(self.counts, dtype=torch.long)),
            torch.tensor(self.problem, dtype=torch.long),
            torch.tensor(self.ends, dtype=torch.bool),
            settings,
            provenance,
        )


class Recorder:
    """A verifier that decides as another one does, and keeps the rows that it saw.

    Args:
        inner: what decides.
        recording: where the rows go.
        problem: the problem's number.
        sampling: of the request.
        stop_token_ids: tokens that end the response.
    """

    def __init__(
        self,
        inner: Verifier,
        recording: Recording,
        problem: int,
        sampling: SamplingParams,
        stop_token_ids: Sequence[int],
    ) -> None:
        """Begin a response."""
        self._inner, self._recording, self._problem = inner, recording, problem
        self._sampling, self._stop = sampling, frozenset(stop_token_ids)

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Return the inner verifier's decision."""
        decision = self._inner(logits, token_ids, proposal, generator)
        stops = [place for place, token in enumerate(proposal.token_ids) if token in self._stop]
        length = stops[0] + 1 if stops else len(proposal.token_ids)  # what lies behind the end is no part of a response
        drafted = proposal.token_ids[:length]
        vocabulary = logits.shape[-1]
        if proposal.probs is None:
            draft = one_hot(torch.tensor(drafted, dtype=torch.long), vocabulary)
        else:
            draft = proposal.probs[:length]
        target = self._sampling(logits[:length])
        self._recording.add(self._problem, target, draft, drafted, decision.num_accepted + 1, bool(stops))
        return decision


def _recorder(
    recording: Recording, problem: int, sampling: SamplingParams, stop_token_ids: Sequence[int], inner: Verifier
) -> Recorder:
    return Recorder(inner, recording, problem, sampling, stop_token_ids)


def record(
    pair: Pair,
    prompts: Sequence[str],
    *,
    positions: int,
    num_speculative_tokens: int,
    sampling: SamplingParams,
    max_new_tokens: int = 256,
    stop: Sequence[str] = (),
    seed: int = 0,
    memory: int = 2**31,
    settings: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    report: Callable[[int], None] = lambda done: None,
) -> Rows:
    """Return the rows of lossless steps on prompts, until enough positions have been visited.

    Args:
        pair: the models.
        prompts: in order; problem i is answered with seed + i.
        positions: how many visited positions are enough.
        num_speculative_tokens: proposals per step, 1 or more.
        sampling: of both models; a temperature above 0.
        max_new_tokens: upper limit of an answer's length.
        stop: strings that end an answer.
        seed: of the answers.
        memory: recording stops early where the rows take this many bytes.
        settings: kept with the rows.
        provenance: kept with the rows.
        report: called with the number of positions so far.

    Raises:
        ValueError: at temperature 0, or where no position was visited.
    """
    if sampling.temperature == 0:
        raise ValueError(
            "the temperature must be above 0: at 0 every distribution is one-hot, and every rule of a divergence "
            "accepts the target's most likely token only"
        )
    recording = Recording()
    for number, prompt in enumerate(prompts):
        if sum(recording.visited) >= positions:
            break
        response = stream(
            pair,
            prompt,
            num_speculative_tokens=num_speculative_tokens,
            max_new_tokens=max_new_tokens,
            stop=stop,
            seed=seed + number,
            observe=partial(_recorder, recording, number, sampling, pair.stop_token_ids),
            **vars(sampling),
        )
        for _ in response:
            done = sum(recording.visited)
            report(min(done, positions))
            if done >= positions or recording.bytes >= memory:
                break
        if recording.bytes >= memory:
            break
    if not any(recording.visited):
        raise ValueError("the draft proposed nothing on these problems, so there is no position to look at")
    return recording.rows(settings or {}, provenance or {})
