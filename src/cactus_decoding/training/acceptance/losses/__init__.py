"""What a draft is trained for: losses, their registry, and their text spelling.

Losses are imported when they are asked for: until then, their names are known without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cactus_decoding.arguments.contributed import Contributed

if TYPE_CHECKING:
    from cactus_decoding.training.acceptance.losses.base import Loss

LOSSES = Contributed[type["Loss"]](
    {
        "cross_entropy": f"{__name__}.base:CrossEntropy",
        "kl": f"{__name__}.base:Kl",
        "reverse_kl": f"{__name__}.base:ReverseKl",
        "total_variation": f"{__name__}.base:TotalVariation",
        "log_acceptance": f"{__name__}.base:LogAcceptance",
        "lk": f"{__name__}.base:Lk",
        "block": f"{__name__}.base:Block",
        "relaxed": f"{__name__}.relaxed:Relaxed",
    }
)
"""Every loss by its name."""


def parse_loss(text: str) -> Loss:
    """Return the loss that a text spells: a name, then ``:`` and comma-separated ``parameter=value`` pairs.

    After ``relaxed:`` comes the spelling of a rule, and optionally a weight: ``relaxed:clamped:width=3,kl_weight=0.2``.

    Raises `TypeError` if ``text`` is no string; `ValueError` for an unknown loss, rule or parameter, one that is
    missing or given twice, or a value out of range.

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
