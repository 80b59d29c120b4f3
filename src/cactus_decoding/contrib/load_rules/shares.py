"""How much of a rule is needed at which load, to keep the time of an output token within a limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cactus_decoding.evaluation.intervals import Interval, Numbers, bootstrapped, resampled_medians


@dataclass(frozen=True)
class SharesAtSize:
    """What shares of a rule's knob come to while ``size`` requests are under way, in seconds per output token.

    ``chosen`` is the share that is needed, and ``within`` whether it keeps the limit.
    """

    size: int
    seconds: dict[float, Interval]
    chosen: float
    within: bool

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, in milliseconds."""
        milliseconds = {str(share): [1000 * end for end in each] for share, each in self.seconds.items()}
        return {
            "concurrency": self.size, "ms_per_token": milliseconds, "share": self.chosen, "within_limit": self.within
        }  # fmt: skip


def shares_at_sizes(times: Mapping[tuple[int, float], Numbers], limit: float) -> list[SharesAtSize]:
    """Choose for each number of requests the smallest share that keeps a limit, or else the fastest one.

    A share keeps it if the upper end of its 95 % interval does, or its median where the timings are too few to tell.

    Times are seconds per output token, ``[rounds]``, by number of requests and share; the limit is in seconds.

    Example:
        >>> times = {(1, 0.0): [1.0], (1, 1.0): [0.5], (8, 0.0): [3.0], (8, 1.0): [2.0]}
        >>> [one.chosen for one in shares_at_sizes({key: np.array(value) for key, value in times.items()}, 2.5)]
        [0.0, 1.0]
    """
    found = []
    for size in sorted({size for size, _ in times}):
        seconds = {
            share: bootstrapped(float(np.median(values)), resampled_medians(values[:, None])[:, 0], len(values))
            for (here, share), values in sorted(times.items())
            if here == size
        }
        kept = [share for share, each in seconds.items() if (each.high if each.has_ends else each.value) <= limit]
        fastest = min(seconds, key=lambda share: seconds[share].value)
        found.append(SharesAtSize(size, seconds, min(kept, default=fastest), bool(kept)))
    return found


def load_table(chosen: list[SharesAtSize]) -> list[list[float]]:
    """Return the rows of vLLM's ``load_rule``: a share holds from the size before, which needed less, up to its own.

    Example:
        >>> load_table([SharesAtSize(size, {}, share, True) for size, share in ((1, 0.0), (4, 0.5), (16, 0.5))])
        [[1, 1, 0.0], [2, 16, 0.5]]
    """
    rows = [[first.size + 1, second.size, second.chosen] for first, second in pairwise(chosen)]
    rows.insert(0, [1, chosen[0].size, chosen[0].chosen])
    joined = rows[:1]
    for row in rows[1:]:
        if row[2] == joined[-1][2]:
            joined[-1][1] = row[1]
        else:
            joined.append(row)
    return joined
