"""Long rows with their unlikely tokens put together: what is kept of a vocabulary of 150,000 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.lab.frontier.recorded_rows import PackedRows

TAIL = 1e-3
"""How much of either row is put together at most."""
_BUCKETS, _PER_NAT = 65, 4
"""Tokens that are put together differ by no more than a quarter of a nat in log p/q, up to 8 nats."""


class Shortened(NamedTuple):
    """A pair of rows in part: the probabilities, float64, of ascending token ids, all ``[tokens]``."""

    token_ids: Tensor
    target: Tensor
    draft: Tensor


def shortened(target: Tensor, draft: Tensor, drafted: int, tail: float = TAIL) -> Shortened:
    r"""Return a pair of rows with the tokens that both models find unlikely put together by their ratio p/q.

    The drafted token is kept, and the others from the likeliest by max(q, p) on, until the rest has at most ``tail`` in
    either row. Of the rest, tokens with about the same ratio stand together as the last one of them. What lossless
    accepts, :math:`\sum_x \min(q(x), p(x))`, stays what it is, because none with p > q stands beside one with p < q; a
    rule whose numbers for the kept tokens stay what they are accepts at most ``tail`` more or less. Rows are
    ``[vocabulary]``, target q and draft p.

    Example:
        >>> q, p = torch.tensor([0.5, 0.4, 0.06, 0.04]), torch.tensor([0.6, 0.37, 0.02, 0.01])
        >>> found = shortened(q, p, drafted=0, tail=0.2)
        >>> found.token_ids.tolist(), [round(x, 6) for x in found.target.tolist()]
        ([0, 1, 2, 3], [0.5, 0.4, 0.06, 0.04])
        >>> shortened(q, torch.tensor([0.6, 0.3, 0.06, 0.04]), drafted=0, tail=0.2).token_ids.tolist()
        [0, 1, 3]
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
    """Return the target's and the draft's rows of shortened pairs.

    Example:
        >>> rows = torch.tensor([0.5, 0.5, 0.0])
        >>> target, _ = pack_shortened([shortened(rows, rows, drafted=1)], 3)
        >>> target.dense(0, 1).tolist()
        [[0.5, 0.5, 0.0]]
    """
    token_ids = torch.cat([pair.token_ids for pair in pairs]).int()
    ends = torch.tensor([len(pair.token_ids) for pair in pairs]).cumsum(0)
    target, draft = (torch.cat([pair[role] for pair in pairs]).float() for role in (1, 2))
    # files hold no tensor twice
    return PackedRows(vocabulary, target, token_ids, ends), PackedRows(
        vocabulary, draft, token_ids.clone(), ends.clone()
    )
