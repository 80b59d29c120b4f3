"""The losses that a draft is trained by: their registry, and their text spelling."""

from __future__ import annotations

from cactus_decoding.core.mistakes import short_repr
from cactus_decoding.core.spelling import parse
from cactus_decoding.lab.training.acceptance.losses.base import (
    Block,
    CrossEntropy,
    Kl,
    Lk,
    LogAcceptance,
    Loss,
    ReverseKl,
    TotalVariation,
)
from cactus_decoding.lab.training.acceptance.losses.relaxed import Relaxed

LOSSES: dict[str, type[Loss]] = {
    "cross_entropy": CrossEntropy,
    "kl": Kl,
    "reverse_kl": ReverseKl,
    "total_variation": TotalVariation,
    "log_acceptance": LogAcceptance,
    "lk": Lk,
    "block": Block,
    "relaxed": Relaxed,
}


def parse_loss(text: str) -> Loss:
    """Parse a loss's spelling: a name, then ``:`` and comma-separated ``parameter=value`` pairs.

    After ``relaxed:`` comes the spelling of a rule, and optionally a weight: ``relaxed:clamped:width=3,kl_weight=0.2``.

    Raises `TypeError` if ``text`` is no string; `ValueError` for an unknown loss, rule or parameter, one that is
    missing or given twice, or a value out of range.
    """
    if not isinstance(text, str):
        raise TypeError(f"a loss's spelling must be a string such as 'lk', but is {short_repr(text)}")
    name, _, rest = text.strip().partition(":")
    return Relaxed.parse(rest, text) if name == Relaxed.name else parse("loss", text, LOSSES)
