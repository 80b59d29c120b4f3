"""Recorded steps of a lossless run: pairs of rows from which every rule's exact behaviour follows, in one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.divergences.rows import normalised
from cactus_decoding.core.files.writing import Format, read_tensors, write_tensors

_BYTES_AT_WORK = 400  # an upper estimate of what an audit holds at once for each probability of a chunk


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of probabilities in float32: many `SparseProbs` one after another, as a file keeps them.

    ``probs`` are all rows, ``[rows, vocabulary]``; or, if ``token_ids`` (int32, ascending within a row) are given,
    only the positive entries, row after row, and ``ends`` says where those of each row end, ``[rows]``, int64.
    """

    vocabulary: int
    probs: Tensor
    token_ids: Tensor | None = None
    ends: Tensor | None = None

    def __len__(self) -> int:
        return len(self.probs if self.ends is None else self.ends)

    @property
    def sparse(self) -> bool:
        return self.ends is not None

    @property
    def counts(self) -> Tensor:
        """How many entries each row has, ``[rows]``; sparse rows only."""
        assert self.ends is not None
        return torch.diff(self.ends, prepend=torch.zeros(1, dtype=torch.long))

    def dense(self, start: int, stop: int) -> Tensor:
        if not self.sparse:
            return self.probs[start:stop]
        row, token_ids, values = self.entries(start, stop)
        rows = torch.zeros(stop - start, self.vocabulary)
        rows[row, token_ids] = values
        return rows

    def entries(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return row (counted from ``start``), token and probability of the entries of some rows; sparse rows only."""
        assert self.ends is not None
        assert self.token_ids is not None
        begin = 0 if start == 0 else int(self.ends[start - 1])
        end = 0 if stop == 0 else int(self.ends[stop - 1])
        row = torch.searchsorted(self.ends[start:stop], torch.arange(begin, end), right=True)
        return row, self.token_ids[begin:end].long(), self.probs[begin:end]

    def masses(self, token_ids: Tensor) -> Tensor:
        """Return the probability that each row gives to ``token_ids`` together, in float64, ``[rows]``."""
        if self.token_ids is None:
            return self.probs.index_select(-1, token_ids).sum(-1, dtype=torch.float64)
        counted = torch.where(torch.isin(self.token_ids, token_ids.int()), self.probs, 0.0)
        row = torch.repeat_interleave(torch.arange(len(self)), self.counts)
        return torch.zeros(len(self), dtype=torch.float64).index_add_(0, row, counted.double())


def pack_rows(blocks: Sequence[Tensor], vocabulary: int) -> PackedRows:
    """Keep blocks of rows ``[any, vocabulary]`` in whichever form is smaller."""
    places = [block.nonzero() for block in blocks]
    rows = sum(len(block) for block in blocks)
    if sum(len(place) for place in places) * 8 >= rows * vocabulary * 4:
        return PackedRows(
            vocabulary, torch.cat([block.float() for block in blocks]) if rows else torch.zeros(0, vocabulary)
        )
    counts = torch.cat([(block != 0).sum(-1) for block in blocks])
    values = torch.cat([block[tuple(place.T)].float() for block, place in zip(blocks, places, strict=True)])
    return PackedRows(vocabulary, values, torch.cat([place[:, 1] for place in places]).int(), counts.cumsum(0))


def join(parts: Sequence[PackedRows], vocabulary: int) -> PackedRows:
    if not parts or len({packed.sparse for packed in parts}) == 2:  # rare: truncation that sometimes cuts little
        return pack_rows([packed.dense(0, len(packed)) for packed in parts], vocabulary)
    values = torch.cat([packed.probs for packed in parts])
    if not parts[0].sparse:
        return PackedRows(vocabulary, values)
    token_ids = torch.cat([packed.token_ids for packed in parts if packed.token_ids is not None])
    return PackedRows(vocabulary, values, token_ids, torch.cat([packed.counts for packed in parts]).cumsum(0))


class Chunk(NamedTuple):
    """Some pairs of rows, over as many columns as they need.

    Rows are ``[pairs, columns]`` in float64, scaled to sum to 1. If both were sparse, a row's columns are the tokens
    with a positive probability under either model, in order, and then columns of zeros, which change nothing for any
    rule. ``drafted`` is the column of the drafted token, ``[pairs, 1]``, and ``start`` the place of the first pair.
    """

    start: int
    target: Tensor
    draft: Tensor
    drafted: Tensor


def chunks(target: PackedRows, draft: PackedRows, drafted: Tensor, memory: int) -> Iterator[Chunk]:
    """Yield all pairs in chunks that an audit handles in about ``memory`` bytes, at least one pair in each."""
    columns = target.vocabulary
    if target.sparse and draft.sparse and len(target):
        columns = min(columns, int((target.counts + draft.counts).max()) + 1)
    size = max(1, memory // (columns * _BYTES_AT_WORK))
    for start in range(0, len(target), size):
        stop = min(start + size, len(target))
        tokens = drafted[start:stop].long()
        if target.sparse and draft.sparse:
            entries = [packed.entries(start, stop) for packed in (target, draft)]
            rows = _compact(entries[0], entries[1], tokens, target.vocabulary)
        else:
            rows = target.dense(start, stop), draft.dense(start, stop), tokens.unsqueeze(1)
        yield Chunk(start, normalised(rows[0]), normalised(rows[1]), rows[2])


Entries = tuple[Tensor, Tensor, Tensor]


def _compact(target: Entries, draft: Entries, drafted: Tensor, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows over the union of both supports and the drafted token, and the drafted token's column."""
    rows = torch.arange(len(drafted))
    keys = [row * vocabulary + token_ids for row, token_ids, _ in (target, draft)]
    drafted_keys = rows * vocabulary + drafted
    union = torch.cat([*keys, drafted_keys]).unique()
    row = union // vocabulary
    column = torch.arange(len(union)) - torch.searchsorted(row, rows)[row]
    dense = []
    for key, (_, _, values) in zip(keys, (target, draft), strict=True):
        place = torch.searchsorted(union, key)
        matrix = torch.zeros(len(rows), int(column.max()) + 1)
        matrix[row[place], column[place]] = values
        dense.append(matrix)
    return dense[0], dense[1], column[torch.searchsorted(union, drafted_keys)].unsqueeze(1)


FORMAT = Format("cactus_rows", schema=1, described="of rows that cactus frontier recorded")


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Steps of a lossless run, and the target's and the draft's row at each proposal.

    A step's proposals end with the first one that would end the response, if there is one.
    """

    target: PackedRows  # [proposals, vocabulary]
    draft: PackedRows  # one-hot where the draft is deterministic
    drafted: Tensor
    visited: Tensor  # whether the lossless run judged a proposal: the accepted ones and the first rejected one
    step: Tensor  # of each proposal, ascending
    problem: Tensor  # of each step, ascending
    ends: Tensor  # whether a step's last proposal would end the response
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def positions(self) -> int:
        return int(self.visited.sum())

    @property
    def problems(self) -> int:
        return int(self.problem.max()) + 1 if len(self.problem) else 0

    def save(self, path: Path) -> None:
        tensors = {name: getattr(self, name) for name in ("drafted", "visited", "step", "problem", "ends")}
        for role, packed in (("target", self.target), ("draft", self.draft)):
            tensors[f"{role}_values"] = packed.probs
            if packed.token_ids is not None and packed.ends is not None:
                tensors |= {f"{role}_token_ids": packed.token_ids, f"{role}_ends": packed.ends}
        about = {
            "vocabulary": self.target.vocabulary,
            "settings": dict(self.settings),
            "provenance": dict(self.provenance),
        }
        write_tensors(path, FORMAT, tensors, about)


def read_rows(path: str | Path) -> RecordedRows:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(2, "there is no such file", str(path))
    tensors, about = read_tensors(path, FORMAT)
    try:
        parts = [
            PackedRows(
                about["vocabulary"],
                tensors[f"{role}_values"],
                tensors.get(f"{role}_token_ids"),
                tensors.get(f"{role}_ends"),
            )
            for role in ("target", "draft")
        ]
        plain = {name: tensors[name] for name in ("drafted", "visited", "step", "problem", "ends")}
        rows = RecordedRows(parts[0], parts[1], **plain, settings=about["settings"], provenance=about["provenance"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: the file of rows lacks {error}") from None
    if len({len(x) for x in (rows.target, rows.draft, rows.drafted, rows.visited, rows.step)}) != 1:
        raise ValueError(f"{path}: the file of rows has parts of different lengths")
    return rows


def step_of_proposals(counts: Tensor) -> Tensor:
    """Return the step of each proposal, given each step's number of proposals.

    >>> step_of_proposals(torch.tensor([2, 0, 1])).tolist()
    [0, 0, 2]
    """
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


MERGED_TAIL = 1e-3  # the most probability of either row that is merged
_BUCKETS, _PER_NAT = 65, 4  # merged tokens differ by at most a quarter of a nat in log p/q, up to 8 nats


class Shortened(NamedTuple):
    """A pair of rows in part: the probabilities, float64, of ascending token ids, all ``[tokens]``."""

    token_ids: Tensor
    target: Tensor
    draft: Tensor


def shortened(target: Tensor, draft: Tensor, drafted: int, tail: float = MERGED_TAIL) -> Shortened:
    r"""Return a pair of rows with the tokens that both models find unlikely merged by their ratio p/q.

    The drafted token is kept, and the others in order of max(q, p), until the rest has at most ``tail`` in either row.
    In the rest, tokens with about the same ratio are merged into the last one of them. The acceptance of lossless,
    :math:`\sum_x \min(q(x), p(x))`, does not change, because no token with p > q is merged with one with p < q. The
    acceptance of a rule whose numbers for the kept tokens stay the same changes by at most ``tail``. Rows are
    ``[vocabulary]``, target q and draft p.
    """
    most = torch.maximum(target, draft)
    most[drafted] = torch.inf
    candidates = (most > tail / len(most)).nonzero().squeeze(1)  # all others together have no more
    order = candidates[most[candidates].argsort(descending=True)]
    left = [row.sum(dtype=torch.float64) - row[order].double().cumsum(0) for row in (target, draft)]
    enough = (torch.maximum(*left) <= tail).nonzero()
    kept = order[: int(enough[0, 0]) + 1 if len(enough) else len(order)]
    others = (most > 0).index_fill_(0, kept, False).nonzero().squeeze(1)
    ratio = _PER_NAT * (draft[others] / target[others]).log()
    bucket = (ratio.floor().clamp(-(_BUCKETS // 2), _BUCKETS // 2) + _BUCKETS // 2).long()
    last = torch.full((_BUCKETS,), -1).scatter_reduce_(0, bucket, others, "amax")
    token_ids, places = torch.cat([kept, last[last >= 0]]).sort()
    rows = []
    for row in (target, draft):
        sums = torch.zeros(_BUCKETS, dtype=torch.float64).index_add_(0, bucket, row[others].double())
        rows.append(torch.cat([row[kept].double(), sums[last >= 0]])[places])
    return Shortened(token_ids, *rows)


def pack_shortened(pairs: Sequence[Shortened], vocabulary: int) -> tuple[PackedRows, PackedRows]:
    token_ids = torch.cat([pair.token_ids for pair in pairs]).int()
    ends = torch.tensor([len(pair.token_ids) for pair in pairs]).cumsum(0)
    target, draft = (torch.cat([pair[role] for pair in pairs]).float() for role in (1, 2))
    # files hold no tensor twice
    return PackedRows(vocabulary, target, token_ids, ends), PackedRows(
        vocabulary, draft, token_ids.clone(), ends.clone()
    )
