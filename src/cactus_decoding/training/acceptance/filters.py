"""Which tokens of a batch a draft learns from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from torch import Tensor

from cactus_decoding.arguments.knobs import Knob, check_knobs
from cactus_decoding.arguments.spelling import parse, spell
from cactus_decoding.training.acceptance.losses.base import Rows


@dataclass(frozen=True)
class AdaSpec:
    """Learns only from tokens that a draft of its size can learn: where a reference draft is much nearer the target.

    The reference is distilled first, by the loss ``kl``, from the same start for as many steps. Then the tokens with
    the largest KL(q || p) - KL(q || p_ref) of each batch (of each process) count.

    Source: AdaSPEC, arXiv 2510.19779.

    Attributes:
        keep: the share of a batch's tokens that count.

    Example:
        >>> import torch
        >>> q, p = torch.tensor([[[0.9, 0.1], [0.5, 0.5]]]).log(), torch.zeros(1, 2, 2)
        >>> draft, reference = (Rows.of(q, each, torch.zeros(1, 2, dtype=torch.long)) for each in (p, q))
        >>> AdaSpec(keep=0.5).chosen(draft, reference)
        tensor([0])
    """

    keep: Annotated[float, Knob("share of a batch's tokens", gt=0, le=1)] = 0.4

    def __post_init__(self) -> None:
        """Check the share."""
        check_knobs(self)

    def chosen(self, draft: Rows, reference: Rows) -> Tensor:
        """Return the places of the tokens that count, given the draft's and the reference's rows."""
        gain = draft.kl.detach() - reference.kl
        return gain.topk(math.ceil(self.keep * len(gain))).indices

    def __str__(self) -> str:
        """Return the spelling, which `parse_filter` takes."""
        return spell("adaspec", self)


FILTERS = MappingProxyType({"adaspec": AdaSpec})
"""Every filter by its name."""


def parse_filter(text: str) -> AdaSpec:
    """Return the filter that a text spells.

    Raises:
        ValueError: for an unknown filter or parameter, or a value out of range.

    Example:
        >>> parse_filter("adaspec:keep=0.3")
        AdaSpec(keep=0.3)
    """
    return parse("filter", text, FILTERS)
