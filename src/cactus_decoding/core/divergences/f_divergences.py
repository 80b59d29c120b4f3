"""f-divergences between a lifted distribution and the target, and the largest lift that a budget allows.

Lifting token n of q to probability g and scaling the rest by (1 - g) / (1 - q(n)) costs

    D(g) = q f(g / q) + (1 - q) f((1 - g) / (1 - q)),     q = q(n),

which is convex in g, zero at g = q, and rises from there to g = 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Divergence:
    value: Function  # ``(g, q) -> D(g)`` in float64
    slope: Function | None  # ``(g, q) -> dD/dg``, for the root-finder; None where ``root`` is in closed form
    curvature: float | None  # f''(1), or None where f has a kink there and no second-order expansion exists
    root: Callable[[Tensor, float], Tensor] | None = None  # ``(q, delta) -> g`` in closed form, or None
    # ``(g, q) -> (D(g), dD/dg)`` in few operations, for Newton's method only: it may lose digits
    quick: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    # ``(q, delta) -> 1 - g``, approximately, where g is close to 1 and D too steep to begin further away
    rest: Callable[[Tensor, float], Tensor] | None = None


def _log_quotient(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """Return ``log(a / b)`` with ``a = b + difference``, to full precision and without overflow."""
    # log1p of the small difference keeps digits where a is close to b, and loses all of them where a is far below b
    close = (a > b / 2) & (a < 2 * b)
    return torch.where(close, torch.log1p(difference / b), a.log() - b.log())


def _kl_value(g: Tensor, q: Tensor) -> Tensor:
    lift = g - q
    rest = torch.where(g < 1, (1 - g) * _log_quotient(1 - g, 1 - q, -lift), 0.0)
    return g * _log_quotient(g, q, lift) + rest


def _kl_slope(g: Tensor, q: Tensor) -> Tensor:
    lift = g - q
    return torch.log1p(lift / q) - torch.log1p(-lift / (1 - q))


def _kl_quick(g: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    lift = g - q
    down = torch.log1p(lift / (q - 1))
    slope = torch.log1p(lift / q) - down
    return torch.addcmul(down, g, slope), slope


def _kl_rest(q: Tensor, delta: float) -> Tensor:
    # with r = 1 - g, D(1) - D(g) is r (1 + log((1 - q) / q) - log r) to first order, and r in the logarithm below that
    missing = -q.log() - delta
    return missing / (1 + (1 / q - 1).log() - missing.log())


def _reverse_kl_value(g: Tensor, q: Tensor) -> Tensor:
    lift = g - q
    return -q * _log_quotient(g, q, lift) - (1 - q) * _log_quotient(1 - g, 1 - q, -lift)


def _reverse_kl_slope(g: Tensor, q: Tensor) -> Tensor:
    return (g - q) / (g * (1 - g))


def _reverse_kl_quick(g: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    lift, rest = g - q, q - 1
    return rest * torch.log1p(lift / rest) - q * torch.log1p(lift / q), lift / (g * (1 - g))


def _hellinger_value(g: Tensor, q: Tensor) -> Tensor:
    # half the squared differences of the roots, each difference written as a quotient that does not cancel
    lift = g - q
    up = lift / (g.sqrt() + q.sqrt())
    down = lift / ((1 - g).sqrt() + (1 - q).sqrt())
    return (up.square() + down.square()) / 2


def _hellinger_root(q: Tensor, delta: float) -> Tensor:
    # with q = sin(b)^2 and g = sin(a)^2 the divergence is 1 - cos(a - b)
    if delta >= 1:
        return torch.ones_like(q)
    turn = 2 * math.asin(math.sqrt(delta / 2))  # arccos(1 - delta), without cancellation
    angle = torch.atan2(q.sqrt(), (1 - q).sqrt())
    lift = math.sin(turn) * torch.sin(2 * angle + turn)  # sin(a)^2 - sin(b)^2
    return torch.where(angle + turn >= math.pi / 2, 1.0, q + lift)


def _jensen_shannon_value(g: Tensor, q: Tensor) -> Tensor:
    return (_to_middle(g, q) + _to_middle(1 - g, 1 - q)) / 2


def _to_middle(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a log(2a / (a + b)) + b log(2b / (a + b))``, and its limit where a is 0."""
    middle, half = (a + b) / 2, (a - b) / 2
    return torch.where(a > 0, a * _log_quotient(a, middle, half), 0.0) + b * _log_quotient(b, middle, -half)


def _jensen_shannon_slope(g: Tensor, q: Tensor) -> Tensor:
    return (torch.log1p((g - q) / (g + q)) - torch.log1p((q - g) / (2 - g - q))) / 2


def _jensen_shannon_quick(g: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    lift, total = g - q, g + q
    down, up = torch.log1p(lift / (total - 2)), torch.log1p(lift / total)
    back, forth = torch.log1p(lift / (2 - total)), torch.log1p(-lift / total)
    return (g * up + (1 - g) * down + q * forth + (1 - q) * back) / 2, (up - down) / 2


DIVERGENCES: dict[str, Divergence] = {
    "kl": Divergence(_kl_value, _kl_slope, 1.0, quick=_kl_quick, rest=_kl_rest),
    "reverse_kl": Divergence(_reverse_kl_value, _reverse_kl_slope, 1.0, quick=_reverse_kl_quick),
    "chi_square": Divergence(
        lambda g, q: (g - q).square() / (q * (1 - q)),
        None,
        2.0,
        lambda q, delta: (q + (delta * q * (1 - q)).sqrt()).clamp(max=1.0),
    ),
    "squared_hellinger": Divergence(_hellinger_value, None, 0.25, _hellinger_root),
    "total_variation": Divergence(lambda g, q: g - q, None, None, lambda q, delta: (q + delta).clamp(max=1.0)),
    "jensen_shannon": Divergence(_jensen_shannon_value, _jensen_shannon_slope, 0.25, quick=_jensen_shannon_quick),
}
"""f of each: t log t; -log t; (t-1)^2; (sqrt t - 1)^2 / 2; |t-1| / 2; (t log t - (t+1) log((t+1)/2)) / 2."""


def lift_by_expansion(divergence: str, q: Tensor, delta: float) -> Tensor:
    r"""Return the lift that a second-order expansion of the divergence allows.

    .. math:: g = \min(q + \sqrt{2 \delta q (1 - q) / f''(1)},\ 1)

    For KL this is the closed form of the Cactus paper (Hao and Mou, arXiv 2604.04987). It can overspend ``delta``,
    which is in nats. q may have any shape.
    """
    curvature = DIVERGENCES[divergence].curvature
    if curvature is None:
        raise ValueError(f"{divergence} has no second-order expansion; use solver='exact'")
    q = q.double()
    inside = (q > 0) & (q < 1)  # spelled out because a huge delta times zero is NaN
    lifted = (q + (2 * delta / curvature * q * (1 - q)).sqrt()).clamp(max=1.0)
    return torch.where(inside, lifted, q.clamp(max=1.0))


def lift_exactly(divergence: str, q: Tensor, delta: float) -> Tensor:
    """Return the largest g in [q, 1] with D(g) <= delta, in closed form or by Newton's method.

    A fixed number of steps is enough wherever its result spends at most ``delta`` and all but a part in 10^11 of it.
    The rest is left to a finder that keeps a bracket with D(low) <= delta < D(high) and returns its low end. So no root
    overspends, and a device is waited for only once.
    """
    chosen = DIVERGENCES[divergence]
    q = q.double()
    inside = (q > 0) & (q < 1)
    safe = torch.where(inside, q, 0.5)  # a token of probability 0 or 1 cannot be lifted
    if delta == 0:
        return q.clone()
    g = chosen.root(safe, delta) if chosen.root else _find_roots(chosen, safe, delta)
    return torch.where(inside, g, q)


_FIXED_ROUNDS = 5
_MAX_ROUNDS = 200
_SPARE = 5e-12  # share of the budget that may be left unspent, so that rounding does not decide whether it is overspent


def _find_roots(divergence: Divergence, q: Tensor, delta: float) -> Tensor:
    """Find roots by a few steps of Newton's method, and by the bracketed finder where these are not enough.

    D is convex, so after a first step that may go too far all others approach the root from the right.
    """
    assert divergence.quick is not None
    assert divergence.curvature is not None
    aim = delta * (1 - _SPARE / 2)
    guess = torch.minimum(q + (2 * delta / divergence.curvature * q * (1 - q)).sqrt(), (1 + q) / 2)
    if divergence.rest is not None:
        rest = divergence.rest(q, delta)
        guess = torch.where((rest > 0) & (rest < (1 - q) / 2), torch.maximum(guess, 1 - rest), guess)
    for _ in range(_FIXED_ROUNDS):
        spent, slope = divergence.quick(guess, q)
        guess = torch.minimum(guess + (aim - spent) / slope, (1 + guess) / 2)
    # where all the mass fits the budget there is nothing to solve (reverse KL: never, it is infinite)
    whole = divergence.value(torch.ones_like(q), q) <= delta
    spent = divergence.value(guess, q)
    solved = whole | ((guess >= q) & (spent <= delta) & (delta - spent <= _SPARE * delta))
    roots = torch.where(whole, 1.0, guess)
    if not bool(solved.all()):
        roots[~solved] = _find_bracketed(divergence, q[~solved], delta)
    return roots


def _find_bracketed(divergence: Divergence, q: Tensor, delta: float) -> Tensor:
    """Find roots by Newton's method in a bracket that always closes, where not all the mass fits the budget."""
    assert divergence.slope is not None
    assert divergence.curvature is not None
    roots, unsolved = torch.ones_like(q), torch.arange(len(q), device=q.device)
    low, high = q.clone(), torch.ones_like(q)
    guess = torch.minimum(q + (2 * delta / divergence.curvature * q * (1 - q)).sqrt(), (1 + q) / 2)
    for round_ in range(_MAX_ROUNDS):
        spent = divergence.value(guess, q)
        within = spent <= delta
        low, high = torch.where(within, guess, low), torch.where(within, high, guess)
        newton = guess + (delta * (1 - _SPARE / 2) - spent) / divergence.slope(guess, q)
        # geometric halving reaches tiny roots as fast as large ones
        middle = torch.where(low < high / 4, (low * high).sqrt(), (low + high) / 2)
        usable = (newton > low) & (newton < high) & (round_ % 8 < 7)
        guess = torch.where(usable, newton, middle)
        solved = (within & (delta - spent <= _SPARE * delta)) | (guess <= low) | (guess >= high)
        roots[unsolved] = low
        if bool(solved.all()):
            break
        unsolved, q, low, high, guess = (part[~solved] for part in (unsolved, q, low, high, guess))
    return roots
