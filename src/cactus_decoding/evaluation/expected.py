"""What steps are expected to keep, from the chance that each proposal is kept where those before it are."""

from __future__ import annotations

import torch
from torch import Tensor


def expected_kept(chances: Tensor) -> Tensor:
    r"""Return how many of a step's first 1, 2, … proposals are expected to be kept, ``[..., proposals]``.

    .. math:: \sum_{j \le k} \prod_{i \le j} a_i

    The step brings one token more.

    Args:
        chances: of a step's proposals, ``[..., proposals]``; 0 where there is none.

    Example:
        >>> expected_kept(torch.tensor([0.5, 0.5])).tolist()
        [0.5, 0.75]
    """
    return chances.cumprod(-1).cumsum(-1)


def laid_out(values: Tensor, group: Tensor, groups: int, width: int = 0) -> Tensor:
    """Return values with a row for each group, ``[groups, longest + width]`` in float64, and zeros behind them.

    Args:
        values: ``[values]``.
        group: which one a value belongs to, ascending, ``[values]``.
        groups: how many there are.
        width: zeros behind the longest group, at least.

    Example:
        >>> laid_out(torch.tensor([0.5, 0.25, 1.0]), torch.tensor([0, 0, 1]), 2).tolist()
        [[0.5, 0.25], [1.0, 0.0]]
    """
    counts = torch.bincount(group.long(), minlength=groups)
    place = torch.arange(len(group)) - (counts.cumsum(0) - counts)[group]
    rows = torch.zeros(groups, (int(counts.max()) if groups else 0) + width, dtype=torch.float64)
    rows[group, place] = values.double()
    return rows
