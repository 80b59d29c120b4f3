"""Where to clamp the ratio of draft to target so that the result is a distribution: for one row, or many at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cactus_decoding.core.checks import MAX_WIDTH
from cactus_decoding.core.divergences.rows import RatioOrder, order_by_ratio, sums_before

_MAX_EVALUATIONS = 300


def find_root(
    function: Callable[[float], tuple[float, bool]], left: float, right: float, start: float, slope: float
) -> tuple[float, float]:
    """Return the ends of a bracket around the root of an increasing function, by a safeguarded secant method.

    The secant through the last two points is followed while it leads into the bracket and, over any two steps, either
    the bracket or the value halves; otherwise the bracket is halved. A root beyond ``left`` or ``right`` is taken to be
    there.

    ``function`` returns its value, which may be infinite, and whether that is close enough to zero to stop: then both
    ends are that point. Otherwise the function is at most 0 at the first end and more than 0 at the second, with no
    number between them. ``slope`` is about how steep the function is at ``start``.
    """
    low, high = -math.inf, math.inf  # until a point is known to be to the left or right
    x, seen = start, [(math.nan, math.inf)] * 3  # the last points and values
    widths = [right - left] * 3
    for _ in range(_MAX_EVALUATIONS):
        value, close = function(x)
        if close:
            return x, x
        low, high = (x, high) if value <= 0 else (low, x)
        ends = max(low, left), min(high, right)
        widths, seen = [*widths[1:], ends[1] - ends[0]], [*seen[1:], (x, value)]
        if math.isfinite(seen[1][1]) and value != seen[1][1]:
            slope = (value - seen[1][1]) / (x - seen[1][0])
        # an end that was not visited yet may be the root: only then is a guess beyond it worth a look
        guess = min(max(x - value / slope, left), right) if slope > 0 else math.nan
        stalled = widths[2] > widths[0] / 2 and abs(value) > abs(seen[0][1]) / 2
        if stalled or not low < guess < high:
            guess = ends[0] + (ends[1] - ends[0]) / 2
            if not low < guess < high:
                break
        x = guess
    return max(low, left), min(high, right)


_NEAR = 1e-3  # the search for lo goes on with exact sums once gain and loss differ by no more than this share of either
_CLOSE = 3e-15  # how far sum h may be from 1: a few roundings of a sum of 150,000 terms
_CLOSE_KL = 4e-12, 1e-16
"""How much of a cap on the KL may be left unspent: a share of it, and what the sum's rounding hides."""
_ENDLESS = 1e290
_LONG, _LARGEST_ROUGH = 4096, 1e30
"""From how many tokens on, and up to which ratio, the search begins in float32, which halves what is read."""
_USUAL_SLOPE = 4.0, 0.2
"""d log(gain / loss) / d lo, and d sqrt(KL) / d width, for rows like a language model's: only where to look first."""


class ClampedRow:
    r"""Finds where h = clamp(p, q e^lo, q e^(lo + width)) sums to 1, and the width at which KL(h || q) reaches a cap.

    With r = p / q, tokens below the clamp gain :math:`\sum q (e^{lo} - r)_+`, and those above it lose
    :math:`\sum q (r - e^{lo + width})_+`; gain and loss must agree (but for what p lacks of summing to 1 on the support
    of q). The logarithm of their quotient is nearly a straight line in lo, which leads close to the root from anywhere;
    from there on :math:`\sum h - 1` is as straight, and takes fewer passes.

    Both are ``[support]`` in float64, and q is positive. p sums to at most 1, as the target may exclude tokens; or to 1
    more beside tokens that are proposed in any case, on which it is the most that they can have.
    """

    def __init__(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        missing = 1 - draft_probs.sum().item()
        ratios = draft_probs / target_probs
        largest = ratios.amax().item() if len(ratios) else 0.0
        if largest > _ENDLESS:  # q times the bound is nothing: all of p is lost
            kept = ratios <= _ENDLESS
            missing += draft_probs[~kept].sum().item()
            ratios, target_probs = ratios[kept], target_probs[kept]
        self.target, self.ratios = target_probs, ratios
        self._clamped = torch.empty_like(ratios)
        self._rough = target_probs, ratios, self._clamped
        if len(ratios) >= _LONG and largest < _LARGEST_ROUGH:
            self._rough = target_probs.float(), ratios.float(), torch.empty(len(ratios), dtype=torch.float32)
        # below the least ratio nothing is gained, and h sums to less than p; it must, if p sums to more than 1
        self._min_log_ratio = _log(ratios.amin().item()) if len(ratios) and missing >= -_CLOSE else -math.inf
        self._slope = _USUAL_SLOPE[0]
        self._gained, self._lost = max(-missing, 0.0), max(missing, 0.0)

    def lower(self, width: float, start: float | None = None) -> float:
        """Return lo in [-width, 0] for a width in nats; ``start`` is a guess."""
        target, ratios, clamped = self._rough
        largest = _LARGEST_ROUGH if ratios.dtype == torch.float32 else math.inf
        before, steepness = (math.nan, math.nan), 0.0

        def imbalance(low: float) -> tuple[float, bool]:
            nonlocal before, steepness
            torch.clamp(ratios, math.exp(low), min(math.exp(low) * math.exp(width), largest), out=clamped)
            change = clamped.sub_(ratios)
            net = torch.dot(target, change).item()
            gross = torch.dot(target, change.abs_()).item()
            gain, loss = (gross + net) / 2 + self._gained, (gross - net) / 2 + self._lost
            value = _log(gain) - _log(loss)
            slope = (value - before[1]) / (low - before[0]) if low != before[0] else math.nan
            if 1 < slope < 100:  # a sound one will be about right for the next width too
                self._slope = slope
            before, steepness = (low, value), self._slope * gain
            return value, abs(gain - loss) <= max(_NEAR * gain, _CLOSE)

        def excess(low: float) -> tuple[float, bool]:
            value = torch.dot(self.target, self._clamp(low, width)).item() - 1
            return value, abs(value) <= _CLOSE

        floor = min(max(-width, self._min_log_ratio), 0.0)  # below the least ratio nothing is gained
        start = floor / 2 if start is None else min(max(start, floor), 0.0)
        start = find_root(imbalance, floor, 0.0, start, self._slope)[1]
        return find_root(excess, floor, 0.0, start, steepness)[1]

    def _clamp(self, low: float, width: float) -> Tensor:
        """Return h / q, ``[support]``, in a buffer."""
        return torch.clamp(self.ratios, math.exp(low), math.exp(low) * math.exp(width), out=self._clamped)

    def max_width(self, max_kl: float, limit: float) -> tuple[float, float]:
        """Return lo and the largest width up to ``limit`` at which KL(h || q) <= ``max_kl``."""
        log_ratios, logs = self.ratios.log(), torch.empty_like(self.ratios)
        lows = {0.0: 0.0}
        spare = _CLOSE_KL[0] * max_kl + _CLOSE_KL[1]

        def kl_at(width: float, start: float) -> float:
            low = lows[width] = self.lower(width, start)
            h = self._clamp(low, width).mul_(self.target)
            return torch.dot(h, torch.clamp(log_ratios, low, low + width, out=logs)).item()

        if kl_at(limit, -limit) <= max_kl:
            return lows[limit], limit
        del lows[limit]  # too far from the others to guess by

        def overspent(width: float) -> tuple[float, bool]:
            near = sorted(lows, key=lambda known: abs(known - width))[:2]
            slope = (lows[near[0]] - lows[near[1]]) / (near[0] - near[1]) if len(near) == 2 else -0.5
            kl = kl_at(width, lows[near[0]] + (width - near[0]) * slope)
            # square roots: nearly a straight line where the width is small; halfway into the spare, to stay below
            return math.sqrt(max(kl, 0.0)) - math.sqrt(max(max_kl - spare / 2, 0.0)), 0 <= max_kl - kl <= spare

        start = min(math.sqrt(max_kl) / _USUAL_SLOPE[1], limit)
        width = find_root(overspent, 0.0, limit, start, _USUAL_SLOPE[1])[0]  # the end that does not overspend
        return lows[width], width


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


_MAX_ROUNDS = 120
_CLOSE_KL_OF_MANY = 1e-11, 1e-16  # as `_CLOSE_KL`, where sums are looked up
_FEW_ROWS = 2  # for up to so many rows, or from `_LONG` tokens on, one row at a time without a sort is faster on a CPU


def clamp_bounds(
    target_probs: Tensor, draft_probs: Tensor, *, width: float | None = None, max_kl: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return (e^lo, e^hi) of each row, ``[..., 1]``, such that clamp(p, q e^lo, q e^hi) sums to 1.

    The width, hi - lo, is in [0, 500]; instead of it, ``max_kl`` is what KL(h ‖ q) may be at most. Both are in nats.
    """
    one = torch.ones((*target_probs.shape[:-1], 1), dtype=torch.float64, device=target_probs.device)
    if width == 0 or max_kl == 0:
        return one, one
    if one.device.type == "cpu" and (one.numel() <= _FEW_ROWS or target_probs.shape[-1] >= _LONG):
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
    if not bool(target_probs.amin() > 0):  # what the target excludes has no part in it
        support = target_probs.nonzero().squeeze(1)
        target_probs, draft_probs = target_probs[support], draft_probs[support]
    row = ClampedRow(target_probs, draft_probs)
    if width is not None:
        return row.lower(width), width
    return row.max_width(max_kl or 0.0, MAX_WIDTH)


class RatioClamp:
    """h = clamp(p, q e^lo, q e^(lo + width)) for many rows, whose sums are looked up in the ratio order."""

    def __init__(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        self.table: RatioOrder = order_by_ratio(target_probs, draft_probs)
        ratios = self.table.ratios
        self.in_support = self.table.count_below(torch.full_like(ratios[..., :1], torch.inf))
        log_ratios = torch.where(ratios.isfinite() & (ratios > 0), ratios.log(), 0.0)
        self.draft_cost_before = sums_before(self.table.draft_before.diff(dim=-1) * log_ratios)

    def _parts(self, low: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return where the clamp's middle begins and ends, and the sums of q below, p between, q above them."""
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

        The sum of h is piecewise linear in e^lo. Each round solves the current piece; it halves the bracket where the
        solution lies outside, and every third time, so that the bracket always closes.
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
        """Return KL(h || q) of each row at a width, and its derivative by the width."""
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
        spare = _CLOSE_KL_OF_MANY[0] * max_kl + _CLOSE_KL_OF_MANY[1]
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
