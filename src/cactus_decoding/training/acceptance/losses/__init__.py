"""What a draft is trained for: one loss a file, one registry, and their text spelling."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from cactus_decoding.arguments.checks import shown
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.training.acceptance.losses.base import Loss
from cactus_decoding.training.acceptance.losses.block import Block
from cactus_decoding.training.acceptance.losses.cross_entropy import CrossEntropy
from cactus_decoding.training.acceptance.losses.kl import Kl
from cactus_decoding.training.acceptance.losses.lk import Lk
from cactus_decoding.training.acceptance.losses.log_acceptance import LogAcceptance
from cactus_decoding.training.acceptance.losses.relaxed import Relaxed
from cactus_decoding.training.acceptance.losses.reverse_kl import ReverseKl
from cactus_decoding.training.acceptance.losses.total_variation import TotalVariation

LOSSES: Mapping[str, type[Loss]] = MappingProxyType(
    {each.name: each for each in (CrossEntropy, Kl, ReverseKl, TotalVariation, LogAcceptance, Lk, Block, Relaxed)}
)
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
    if not isinstance(text, str):
        raise TypeError(f"a loss's spelling must be a string such as 'lk', but is {shown(text)}")
    name, _, rest = text.strip().partition(":")
    return Relaxed.parse(rest, text) if name == Relaxed.name else parse("loss", text, LOSSES)
