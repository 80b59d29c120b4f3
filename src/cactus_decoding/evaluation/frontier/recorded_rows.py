"""Recorded steps of a lossless run: the pairs of rows from which every rule's exact behaviour follows, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.evaluation.frontier.packed_rows import PackedRows
from cactus_decoding.files.tensors import Format, read_tensors, write_tensors

FORMAT = Format("cactus_rows", schema=1, described="of rows that cactus frontier recorded")


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """Steps of a lossless run, and the target's and the draft's row at each proposal.

    A step's proposals end with one that would end the response, if there is such a one.

    Attributes:
        target: the target's rows, ``[proposals, vocabulary]``.
        draft: the draft's; one-hot where the draft is deterministic.
        drafted: the proposed tokens, ``[proposals]``.
        visited: whether the lossless run looked at the proposal: the accepted ones and the first rejected one.
        step: which step a proposal belongs to, ascending, ``[proposals]``.
        problem: which problem a step belongs to, ascending, ``[steps]``.
        ends: whether a step's last proposal would end the response, ``[steps]``.
        settings: what was recorded: models, task, sampling, draft length, seed.
        provenance: commit, versions, machine.
    """

    target: PackedRows
    draft: PackedRows
    drafted: Tensor
    visited: Tensor
    step: Tensor
    problem: Tensor
    ends: Tensor
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def positions(self) -> int:
        """How many positions the lossless run visited."""
        return int(self.visited.sum())

    @property
    def problems(self) -> int:
        """How many problems were begun."""
        return int(self.problem.max()) + 1 if len(self.problem) else 0

    def save(self, path: Path) -> None:
        """Write the file, all or nothing."""
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
    """Return what a file holds.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no file of rows, is damaged, or has another schema.
    """
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
