"""The largest entries of a long row, without a sort: most of the row is dismissed a group at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_GROUP = 64
"""Entries a group. The maxima of the groups cost one pass that the processor does at the speed of memory."""

Map = Callable[[Tensor], Tensor]


def largest(row: Tensor, count: int, scaled: Map = lambda values: values) -> tuple[Tensor, Tensor]:
    """Return the ids, ascending, and scaled values of all entries that are at least as large as the ``count``-th.

    Args:
        row: ``[vocabulary]``. NaN counts as larger than anything.
        count: from 1 to the length of the row; more entries are returned where there are ties.
        scaled: an increasing function, by whose values entries are compared; it may take different ones to the same.

    Example:
        >>> ids, values = largest(torch.tensor([1.0, 5.0, 3.0, 3.0, 0.0]), 2)
        >>> ids.tolist(), values.tolist()
        ([1, 2, 3], [5.0, 3.0, 3.0])
    """
    groups = len(row) // _GROUP
    if groups <= 2 * count:
        values = scaled(row)
        return _select(values, torch.arange(len(row)), values.topk(count).values[-1])
    # as many groups have an entry this large, so that the one sought is no smaller
    maxima = _maxima(row, scaled)
    values, ids = _members(row, (maxima < maxima.topk(count).values[-1]).logical_not_(), scaled)
    return _select(values, ids, values.topk(count).values[-1])


def at_least(row: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the ids, ascending, and the values of the entries that are ``floor`` or more.

    Example:
        >>> at_least(torch.tensor([1.0, 5.0, 3.0]), 3.0)[0].tolist()
        [1, 2]
    """
    values, ids = _members(row, (_maxima(row, lambda values: values) < floor).logical_not_(), lambda values: values)
    return _select(values, ids, floor)


def _maxima(row: Tensor, scaled: Map) -> Tensor:
    """Return the maximum of each group; the groups are interleaved, and what is left over belongs to none."""
    groups = len(row) // _GROUP
    return scaled(row[: groups * _GROUP].view(_GROUP, groups).amax(0))


def _members(row: Tensor, chosen: Tensor, scaled: Map) -> tuple[Tensor, Tensor]:
    """Return scaled values and ids of the entries of the chosen groups, and of those that belong to none."""
    groups = len(chosen)
    columns = chosen.nonzero().squeeze(1)
    ids = (columns + groups * torch.arange(_GROUP).unsqueeze(1)).flatten()  # ascending within each of the group's rows
    if len(row) > groups * _GROUP:
        ids = torch.cat([ids, torch.arange(groups * _GROUP, len(row))])
    return scaled(row.index_select(0, ids)), ids


def _select(values: Tensor, ids: Tensor, floor: Tensor | float) -> tuple[Tensor, Tensor]:
    kept = (values < floor).logical_not_().nonzero().squeeze(1)  # a floor of NaN keeps everything
    return ids.index_select(0, kept), values.index_select(0, kept)
