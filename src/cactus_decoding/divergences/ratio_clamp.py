"""Where to clamp the ratio of draft to target so that the result is a distribution: many rows at once."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.arguments.values import MAX_WIDTH
from cactus_decoding.divergences.clamp_row import ClampedRow
from cactus_decoding.divergences.ratio_order import RatioOrder, order_by_ratio, sums_before

_MAX_ROUNDS = 120
_CLOSE_KL = 1e-11, 1e-16
"""How much of a cap on the KL may be left unspent: a share of it, and what the sum's rounding hides."""
_LARGE_VOCABULARY, _FEW_ROWS = 4096, 2
"""From where on, or up to where, one row at a time without a sort is the faster way on a CPU."""


def clamp_bounds(
    target_probs: Tensor, draft_probs: Tensor, *, width: float | None = None, max_kl: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return (e^lo, e^hi) of each row, ``[..., 1]``, such that clamp(p, q e^lo, q e^hi) sums to 1.

    Args:
        target_probs: q, ``[..., vocabulary]``.
        draft_probs: p, ``[..., vocabulary]``.
        width: hi - lo in nats, in [0, 500].
        max_kl: instead of the width, what KL(h || q) may be at most, in nats.

    Example:
        >>> q, p = torch.tensor([0.5, 0.5]), torch.tensor([0.75, 0.25])
        >>> [round(bound.item(), 6) for bound in clamp_bounds(q, p, width=500.0)]  # nothing to clamp
        [0.5, ...]
    """
    one = torch.ones((*target_probs.shape[:-1], 1), dtype=torch.float64, device=target_probs.device)
    if width == 0 or max_kl == 0:
        return one, one
    if one.device.type == "cpu" and (one.numel() <= _FEW_ROWS or target_probs.shape[-1] >= _LARGE_VOCABULARY):
        vocabulary = target_probs.shape[-1]
        rows = zip(target_probs.reshape(-1, vocabulary), draft_probs.reshape(-1, vocabulary), strict=True)
        solved = torch.tensor([_solve_row(q.double(), p.double(), width, max_kl) for q, p in rows], dtype=torch.float64)
        low, widths = (part.reshape(one.shape) for part in solved.reshape(-1, 2).T)
        low = low.exp()
    else:
        clamp = RatioClamp(target_probs, draft_probs)
        widths = width * one if width is not None else clamp.max_width(max_kl or 0.0)
        low = clamp.lower(widths)
    return low, low * widths.exp()


def _solve_row(
    target_probs: Tensor, draft_probs: Tensor, width: float | None, max_kl: float | None
) -> tuple[float, float]:
    """Return lo and the width of one row."""
    if target_probs.count_nonzero() < len(target_probs):  # what the target excludes has no part in it
        support = target_probs.nonzero().squeeze(1)
        target_probs, draft_probs = target_probs[support], draft_probs[support]
    row = ClampedRow(target_probs, draft_probs)
    if width is not None:
        return row.lower(width), width
    return row.max_width(max_kl or 0.0, MAX_WIDTH)


class RatioClamp:
    r"""h = clamp(p, q e^lo, q e^(lo + width)), whose sums are looked up in the ratio order.

    Args:
        target_probs: q, ``[..., vocabulary]``.
        draft_probs: p, ``[..., vocabulary]``.
    """

    def __init__(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        self.table: RatioOrder = order_by_ratio(target_probs, draft_probs)
        ratios = self.table.ratios
        self.in_support = self.table.count_below(torch.full_like(ratios[..., :1], torch.inf))
        log_ratios = torch.where(ratios.isfinite() & (ratios > 0), ratios.log(), 0.0)
        self.draft_cost_before = sums_before(self.table.draft_before.diff(dim=-1) * log_ratios)

    def _parts(self, low: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return the places where the clamp's middle begins and ends, and q below, p between, q above them."""
        table = self.table
        begin = table.count_below(low)
        end = torch.minimum(table.count_up_to(low * width.exp()), self.in_support)
        end = torch.maximum(begin, end)
        below = table.target_before.gather(-1, begin)
        between = table.draft_before.gather(-1, end) - table.draft_before.gather(-1, begin)
        above = table.target_from.gather(-1, end)
        return begin, end, below, between, above

    def lower(self, width: Tensor) -> Tensor:
        """Return e^lo of each row, lo in [-width, 0], ``[..., 1]``.

        The sum of h is piecewise linear in e^lo: the piece that one is in is solved, and the bracket halved where that
        leads out of it, and every third time, so that it always closes.
        """
        left, right = -width, torch.zeros_like(width)
        low, stretch = -width / 2, width.exp()
        found, result = torch.zeros_like(width, dtype=torch.bool), torch.ones_like(width)
        for round_ in range(_MAX_ROUNDS):
            _, _, below, between, above = self._parts(low.exp(), width)
            weight = below + stretch * above
            short = low.exp() * weight + between < 1
            left, right = torch.where(short, low, left), torch.where(short, right, low)
            factor = (1 - between) / weight  # no number where the piece is flat
            solved = factor.log()
            arrived = (solved - low).abs() <= 4e-16 * (1 + low.abs())
            middle = (left + right) / 2
            inside = (solved > left) & (solved < right) & (round_ % 3 < 2)
            following = torch.where(inside, solved, middle)
            # where everything lies between the bounds (h = p) the piece is flat, and any lo in it will do
            closed = (following <= left) | (following >= right)
            # a large lo has lost the last digits of e^lo: the solution has them
            result = torch.where(found, result, torch.where(arrived, factor, right.exp()))
            found |= arrived | closed
            if bool(found.all()):
                break
            low = torch.where(found, low, following)
        return result

    def _kl(self, width: Tensor) -> tuple[Tensor, Tensor]:
        """Return KL(h || q) of each row at a width, and its slope in the width."""
        low = self.lower(width)
        lower, upper = low.log(), low.log() + width
        high = low * width.exp()
        begin, end, below, _, above = self._parts(low, width)
        between = self.draft_cost_before.gather(-1, end) - self.draft_cost_before.gather(-1, begin)
        lowered, lifted = low * below, high * above
        kl = lowered * lower + between + lifted * upper
        # as lo gives way to keep the sum: d lo = -lifted / (lowered + lifted), d hi = lowered / (lowered + lifted)
        return kl, width * (lowered * lifted / (lowered + lifted))

    def max_width(self, max_kl: float) -> Tensor:
        """Return each row's largest width with KL at most ``max_kl``; the lower end of a bracket never overspends."""
        left = torch.zeros_like(self.table.ratios[..., :1])
        right = torch.full_like(left, MAX_WIDTH)
        fits = self._kl(right)[0] <= max_kl
        spare = _CLOSE_KL[0] * max_kl + _CLOSE_KL[1]
        width = torch.full_like(left, min(5 * max_kl**0.5, MAX_WIDTH / 2))
        for round_ in range(_MAX_ROUNDS):
            kl, slope = self._kl(width)
            within = kl <= max_kl
            left, right = torch.where(within, width, left), torch.where(within, right, width)
            # Newton's step for the square root, which is nearly straight in the width; halfway into the spare
            aim = max(max_kl - spare / 2, 0.0) ** 0.5
            solved = width + (aim - kl.sqrt()) * 2 * kl.sqrt() / slope
            # halves of the order of magnitude, too: widths range over many of them
            middle = torch.where(left < right / 4, (left.clamp(min=1e-12) * right).sqrt(), (left + right) / 2)
            inside = (solved > left) & (solved < right) & (round_ % 3 < 2)
            following = torch.where(inside, solved, middle)
            done = fits | (within & (max_kl - kl <= spare)) | (following <= left) | (following >= right)
            if bool(done.all()):
                break
            width = torch.where(done, width, following)
        return torch.where(fits, MAX_WIDTH, left)
