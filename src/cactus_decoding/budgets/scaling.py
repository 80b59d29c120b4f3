"""Rules that are strict at one position and loose at another: one knob, scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from cactus_decoding.rules import RULES, Lossless
from cactus_decoding.rules.base import Rule
from cactus_decoding.types import AcceptanceRule, Verdict, judges_untempered


def check_scalable(rule: AcceptanceRule, asked: str = "importance_scale") -> None:
    """Raise `ValueError` for a rule without a knob of which 0 is lossless.

    Args:
        rule: that is to be scaled.
        asked: the name of what asks for it.

    Example:
        >>> from cactus_decoding.rules import parse_rule
        >>> check_scalable(parse_rule("cactus:delta=1"))
    """
    if not isinstance(rule, Lossless) and not getattr(rule, "scalable", ()):
        known = [name for name, each in RULES.items() if each.scalable]
        raise ValueError(
            f"{asked} multiplies a knob of which 0 is lossless, as {', '.join(known)} have one; the rule "
            f"{rule} has none"
        )


def scaled(rule: AcceptanceRule, factor: float) -> AcceptanceRule:
    """Return a rule with its knob multiplied by a factor, 0 for lossless.

    Raises:
        ValueError: for a rule without such a knob.

    Example:
        >>> from cactus_decoding.rules import parse_rule
        >>> str(scaled(parse_rule("ensemble:weight=0.4"), 0.5))
        'ensemble:weight=0.2'
    """
    check_scalable(rule)
    if not isinstance(rule, Rule):
        return rule
    dataclass_of_knobs: Any = rule
    knobs = {name: getattr(rule, name) for name in rule.scalable}
    return cast(
        Rule, replace(dataclass_of_knobs, **{name: factor * knob for name, knob in knobs.items() if knob is not None})
    )


@dataclass(frozen=True, eq=False)
class RulePerPosition:
    """A rule for each of a step's positions.

    Attributes:
        rules: one a position, ``[k]``, all of one class.
    """

    rules: Sequence[AcceptanceRule]

    @property
    def judges_untempered(self) -> bool:
        """Whether they are rules for temperature 0."""
        return judges_untempered(self.rules[0])

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return each position's two numbers by its own rule."""
        verdicts = [
            rule.judge(_at(target_probs, i), None if draft_probs is None else _at(draft_probs, i), _at(token_ids, i))
            for i, rule in enumerate(self.rules)
        ]
        return Verdict(*(torch.cat(numbers, dim=-2) for numbers in zip(*verdicts, strict=True)))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Return the rows that each recovers from."""
        rows = [rule.recovery_target(_at(target_probs, i)) for i, rule in enumerate(self.rules)]
        return torch.cat(rows, dim=-2)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor | None:
        """Return the h of each, if it does not depend on the drafted token."""
        rows = [rule.relaxed_target(_at(target_probs, i), _at(draft_probs, i)) for i, rule in enumerate(self.rules)]
        found = [row for row in rows if row is not None]
        return torch.cat(found, dim=-2) if len(found) == len(rows) else None


def _at(rows: Tensor, position: int) -> Tensor:
    """Return one position of rows ``[..., k, vocabulary]``, ``[..., 1, vocabulary]``."""
    return rows.narrow(-2, position, 1)
