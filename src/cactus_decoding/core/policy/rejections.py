"""A memory of rejections: relax only where draft and target keep differing in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from cactus_decoding.core.declared import Model, Setting
from cactus_decoding.core.types import AcceptanceRule, judges_untempered

if TYPE_CHECKING:
    from torch import Tensor

    from cactus_decoding.core.policy.position import Position

Pair = tuple[int, int]  # the tokens that the draft and the target find likeliest at a position


class RejectionMemory(Model):
    r"""Relax only positions where the likeliest tokens of draft and target make a pair that was rejected often before.

    With d and t the draft's and the target's likeliest token, a position may be relaxed if proposals at positions with
    the same pair (d, t) were rejected at least ``recurring`` times earlier in the response, and

    .. math:: q(d) \ge \text{ratio} \cdot q(t)

    At temperature 0 q is the target's distribution before temperature, and d the proposal, for a draft that proposes
    its likeliest token. Both conditions depend on the past and on the models' rows, never on the drafted token. So a
    rule still has its relaxed target, and every guarantee of the rule and of a budget holds, token by token.

    Source: CSD (arXiv 2604.13634): a memory of recurring pairs of draft and target tokens, and a gate on the ratio of
    their probabilities. Its abstract was at hand, not its constants. There the memory goes on from text to text and
    begins with calibration data; here each response begins with an empty one, so that a seed repeats.

    Example:
        >>> str(RejectionMemory(recurring=2, ratio=0.3))
        'after 2 like rejections of at least 0.3 of the likeliest'
    """

    recurring: Annotated[
        int,
        Field(ge=1, description="Relax only where proposals were rejected so often before for the same two tokens."),
        Setting("times"),
    ]
    ratio: Annotated[
        float,
        Field(ge=0, le=1, description="There, the least probability of the draft's token over the target's likeliest."),
        Setting(flat="recurring_ratio"),
    ] = 0.0

    def __str__(self) -> str:
        gate = f" of at least {self.ratio:g} of the likeliest" if self.ratio else ""
        return f"after {self.recurring} like rejections{gate}"

    def relaxes(self, rule: AcceptanceRule, seen: Sequence[Pair], position: Position, pair: Pair) -> bool:
        """Return whether a position, whose pair is known, may be relaxed after the rejections that have been seen."""
        if seen.count(pair) < self.recurring:
            return False
        row = _target_row(rule, position)
        return row[pair[0]].item() >= self.ratio * row[pair[1]].item()


def pair_at(rule: AcceptanceRule, position: Position) -> Pair:
    draft = position.draft_row
    drafted = position.token_ids[position.drafted] if draft is None else int(draft.argmax())
    return drafted, int(_target_row(rule, position).argmax())


def _target_row(rule: AcceptanceRule, position: Position) -> Tensor:
    return position.untempered if judges_untempered(rule) else position.target.probs


def with_rejection(seen: tuple[Pair, ...], pair: Pair) -> tuple[Pair, ...]:
    """Return the rejections after one more; where the models agree there is nothing to learn.

    >>> with_rejection(((1, 2),), (1, 2)), with_rejection((), (3, 3))
    (((1, 2), (1, 2)), ())
    """
    return seen if pair[0] == pair[1] else (*seen, pair)
