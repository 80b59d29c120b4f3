"""The largest entries of a long row, without a sort: most of the row is dismissed a group at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

_GROUP = 64
"""Entries a group. The maxima of the groups cost one pass that the processor does at the speed of memory."""
_WITHIN = np.arange(_GROUP)

Scale = Callable[[Tensor], Tensor]


def _unscaled(values: Tensor) -> Tensor:
    return values


def largest(row: Tensor, count: int, scale: Scale = _unscaled) -> tuple[Tensor, Tensor]:
    """Return the ids, ascending, and scaled values of all entries that are at least as large as the ``count``-th.

    Args:
        row: ``[vocabulary]``, on the CPU. NaN counts as larger than anything.
        count: from 1 to the length of the row; more entries are returned where there are ties.
        scale: an increasing function, by whose values entries are compared; it may take different ones to the same.

    Example:
        >>> ids, values = largest(torch.tensor([1.0, 5.0, 3.0, 3.0, 0.0]), 2)
        >>> ids.tolist(), values.tolist()
        ([1, 2, 3], [5.0, 3.0, 3.0])
    """
    if len(row) // _GROUP <= 2 * count:
        values, ids = scale(row), np.arange(len(row))
    else:  # as many groups have an entry this large, so that the one sought is no smaller
        maxima = _maxima(row, scale)
        values, ids = _members(row, maxima, maxima.topk(count).values[-1].item(), scale)
    return _select(values, ids, values.topk(count).values[-1].item())


def at_least(row: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the ids, ascending, and the values of the entries that are ``floor`` or more.

    Example:
        >>> at_least(torch.tensor([1.0, 5.0, 3.0]), 3.0)[0].tolist()
        [1, 2]
    """
    return _select(*_members(row, _maxima(row, _unscaled), floor, _unscaled), floor)


def _maxima(row: Tensor, scale: Scale) -> Tensor:
    """Return the maximum of each group of neighbours; what is left over at the end belongs to none."""
    groups = len(row) // _GROUP
    # neighbours, although strided groups are faster in the cache: a row that comes from memory is read in order
    return scale(row[: groups * _GROUP].view(groups, _GROUP).amax(1))


# On a few entries NumPy takes a third of the time of PyTorch, hence the change of library.
def _members(row: Tensor, maxima: Tensor, floor: float, scale: Scale) -> tuple[Tensor, np.ndarray]:
    """Return scaled values and ids, ascending, of the groups that reach a floor and of what belongs to none."""
    end = len(maxima) * _GROUP
    groups = np.flatnonzero(~(maxima.numpy() < floor))  # a floor of NaN keeps everything
    values = row[:end].view(-1, _GROUP).index_select(0, torch.from_numpy(groups)).flatten()
    ids = (groups[:, None] * _GROUP + _WITHIN).ravel()
    if end < len(row):
        values, ids = torch.cat([values, row[end:]]), np.concatenate([ids, np.arange(end, len(row))])
    return scale(values), ids


def _select(values: Tensor, ids: np.ndarray, floor: float) -> tuple[Tensor, Tensor]:
    wide = values.numpy()
    kept = np.flatnonzero(~(wide < floor))
    return torch.from_numpy(ids[kept]), torch.from_numpy(wide[kept])
