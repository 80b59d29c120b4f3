"""What a draft is trained for: one loss a file, one registry, and their text spelling.

Losses are imported when they are asked for: until then, their names are known without torch.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from cactus_decoding.arguments.contributed import Contributed

if TYPE_CHECKING:
    from cactus_decoding.training.acceptance.losses.base import Loss

LOSS_CLASSES = MappingProxyType(
    {
        "CrossEntropy": "cross_entropy",
        "Kl": "kl",
        "ReverseKl": "reverse_kl",
        "TotalVariation": "total_variation",
        "LogAcceptance": "log_acceptance",
        "Lk": "lk",
        "Block": "block",
        "Relaxed": "relaxed",
    }
)
"""Every loss's class, and the loss's name, which is also that of its module."""

LOSSES = Contributed[type["Loss"]]({name: f"{__name__}.{name}:{each}" for each, name in LOSS_CLASSES.items()})
"""Every loss by its name."""


def parse_loss(text: str) -> Loss:
    """Return the loss that a text spells: a name, then ``:`` and comma-separated ``parameter=value`` pairs.

    After ``relaxed:`` comes the spelling of a rule, and optionally a weight: ``relaxed:clamped:width=3,kl_weight=0.2``.

    Raises:
        TypeError: if ``text`` is no string.
        ValueError: for an unknown loss, rule or parameter, one that is missing or given twice, or a value out of range.

    Example:
        >>> parse_loss("lk"), str(parse_loss("relaxed:clamped:width=3"))
        (Lk(eta=3.0), 'relaxed:clamped:width=3.0')
    """
    from cactus_decoding.arguments.spelling import parse
    from cactus_decoding.arguments.values import shown
    from cactus_decoding.training.acceptance.losses.relaxed import Relaxed

    if not isinstance(text, str):
        raise TypeError(f"a loss's spelling must be a string such as 'lk', but is {shown(text)}")
    name, _, rest = text.strip().partition(":")
    return Relaxed.parse(rest, text) if name == Relaxed.name else parse("loss", text, LOSSES)
