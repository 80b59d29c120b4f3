"""Answers that `studies.real_pair.collect` kept, and the rows at their positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.files.writing import Format, read_tensors
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.sampling.rows import draw
from cactus_decoding.lab.frontier.recorded_rows import TAIL, PackedRows, RecordedRows, shortened

FORMAT = Format("real_pair", schema=1, described="of rows of a study")
PROTECTED = ("digits", "numbers_and_operators", "code")
_AT_ONCE = 2**21
"""Probabilities of each model that are looked at together."""


class Chunk(NamedTuple):
    """Some positions' rows in float64, ``[positions, columns]``; columns behind a row's own are zeros of token 0."""

    places: Tensor
    token_ids: Tensor
    target: Tensor
    draft: Tensor


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers one after another, those of a task together; what each position has stands in ``[positions]``."""

    about: Sequence[dict[str, Any]]  # what each answer's file says of it
    problem: Tensor  # which answer a position belongs to, ascending
    written: Tensor  # the token that stands there
    counts: Tensor  # how many tokens of its row are kept
    token_ids: Tensor  # of all rows, one after another, as the probabilities
    target: Tensor
    draft: Tensor
    masses: Tensor  # what whole rows of the target put on each of `PROTECTED`, ``[positions, sets]``
    whole: dict[int, Tensor]  # pairs of whole rows of some positions, ``[2, vocabulary]``

    def chunks(self, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield all positions, those with rows of about the same length together."""
        starts, order = self.counts.cumsum(0) - self.counts, self.counts.argsort()
        begin = 0
        while begin < len(order):
            end = begin + 1
            while end < len(order) and (end + 1 - begin) * int(self.counts[order[end]]) <= _AT_ONCE:
                end += 1
            places, begin = order[begin:end], end
            columns = torch.arange(int(self.counts[places].max()))
            held = columns < self.counts[places].unsqueeze(1)
            found = (starts[places].unsqueeze(1) + columns).where(held, 0)
            rows = (each[found].double().where(held, 0.0) for each in (self.target, self.draft))
            target, draft = (sampling(row.log()).where(held, 0.0) for row in rows)
            yield Chunk(places, self.token_ids[found].long().where(held, 0), target, draft)

    def recorded(self, provenance: Mapping[str, Any]) -> RecordedRows:
        """Return the rows as `cactus frontier` records them: every position as a step of one proposal."""
        vocabulary, ends = next(iter(self.whole.values())).shape[-1], self.counts.cumsum(0)
        target, draft = (
            PackedRows(vocabulary, each, self.token_ids.clone(), ends.clone()) for each in (self.target, self.draft)
        )
        generator, drafted = torch.Generator().manual_seed(0), torch.zeros(len(ends), dtype=torch.int32)
        for chunk in self.chunks(SamplingParams()):
            picked = draw(chunk.draft, torch.rand(len(chunk.places), generator=generator))
            drafted[chunk.places] = chunk.token_ids.gather(1, picked.unsqueeze(1)).squeeze(1).int()
        positions = len(ends)
        visited, over = torch.ones(positions, dtype=torch.bool), torch.zeros(positions, dtype=torch.bool)
        settings = {"answers": len(self.about), "positions": positions}
        steps = torch.arange(positions)
        return RecordedRows(target, draft, drafted, visited, steps, self.problem, over, settings, provenance)


def read_answers(folder: Path, tasks: Sequence[str], tail: float = TAIL) -> Answers:
    """Return all answers of a folder, task after task, their rows shortened once more for a larger tail."""
    about, parts, whole, positions = [], [], {}, 0
    for task in tasks:
        for path in sorted(folder.glob(f"{task}-*.safetensors")):
            tensors, said = read_tensors(path, FORMAT)
            for place, rows in zip(tensors["whole_places"].tolist(), tensors.get("whole", ()), strict=True):
                whole[positions + place] = rows
            positions += len(tensors["counts"])
            about.append(said)
            if tail > TAIL:
                tensors |= _shorter(tensors, tail)
            parts.append([tensors[key] for key in ("token_ids", "counts", "ids", "target", "draft", "masses")])
    if not parts:
        raise FileNotFoundError(2, "there are no answers of these tasks", str(folder))
    written, counts, ids, target, draft, masses = (torch.cat(each) for each in zip(*parts, strict=True))
    problem = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(part[0]) for part in parts]))
    return Answers(about, problem, written, counts, ids, target, draft, masses, whole)


def _shorter(tensors: dict[str, Tensor], tail: float) -> dict[str, Tensor]:
    """Return the rows of an answer for a larger tail."""
    rows = zip(*(tensors[key].split(tensors["counts"].tolist()) for key in ("ids", "target", "draft")), strict=True)
    ids, pairs = [], []
    for written, (token_ids, target, draft) in zip(tensors["token_ids"], rows, strict=True):
        pairs.append(shortened(target, draft, int((token_ids == written).nonzero()), tail))
        ids.append(token_ids[pairs[-1].token_ids])
    packed = {key: torch.cat([pair[role] for pair in pairs]).float() for role, key in ((1, "target"), (2, "draft"))}
    return packed | {"ids": torch.cat(ids), "counts": torch.tensor([len(each) for each in ids])}
