"""A relaxation policy that knows what a model's tokens say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from torch import Tensor

from cactus_decoding.core.policy.importance import Importance
from cactus_decoding.core.policy.importance_limit import ImportanceLimit
from cactus_decoding.core.policy.phases import Phases, PhaseState
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.policy.protection import Protection, may_relax
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import RULES, Lossless
from cactus_decoding.core.rules.base import Rule
from cactus_decoding.core.types import AcceptanceRule, judges_untempered


def check_scalable(rule: AcceptanceRule) -> None:
    """Raise `ValueError` for a rule without a knob of which 0 is lossless.

    Example:
        >>> from cactus_decoding.core.rules import parse_rule
        >>> check_scalable(parse_rule("cactus:delta=1"))
    """
    if not isinstance(rule, Lossless) and not getattr(rule, "scalable", ()):
        known = [name for name, each in RULES.items() if each.scalable]
        raise ValueError(
            f"importance_scale multiplies a knob of which 0 is lossless, as {', '.join(known)} have one; the rule "
            f"{rule} has none"
        )


def scaled(rule: AcceptanceRule, factor: float) -> AcceptanceRule:
    """Return a rule with its knob multiplied by a factor, 0 for lossless; raise `ValueError` for a rule without one.

    Example:
        >>> from cactus_decoding.core.rules import parse_rule
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
class FittedPolicy:
    """A relaxation policy that knows what the tokens say.

    Attributes:
        vocabulary: the tokens' texts.
        phases: in which part of a response rules may relax.
        protection: which tokens must not be relaxed away; None protects none.
        mask: which these are, ``[vocabulary]``; None if none are.
        limit: how important a position may be; None asks for no importance.
        importance: of these tokens; None if nobody asks for it.
    """

    vocabulary: Vocabulary
    phases: Phases
    protection: Protection | None = None
    mask: Tensor | None = None
    limit: ImportanceLimit | None = None
    importance: Importance | None = None

    @cached_property
    def token_ids(self) -> Tensor | None:
        """The protected tokens, ascending, ``[tokens]``; None if none are."""
        return None if self.mask is None else self.mask.nonzero().squeeze(1)

    def begin(self, prompt_ids: Sequence[int]) -> PhaseState:
        """Return the state behind a prompt."""
        return self.phases.begin(prompt_ids, self.vocabulary)

    def after(self, state: PhaseState, token_ids: Sequence[int]) -> PhaseState:
        """Return the state behind further tokens."""
        return self.phases.after(state, token_ids, self.vocabulary)

    def rule_at(self, rule: AcceptanceRule, state: PhaseState, position: Position) -> AcceptanceRule | None:
        """Return the rule, its knob as loose as the position is unimportant where that is asked; None for lossless.

        Importance is worked out here and not once a step, because a walk reads only the rows of nodes that it visits.
        """
        if not self.phases.relaxes(state):
            return None
        untempered, protection, limit = judges_untempered(rule), self.protection, self.limit
        if protection is not None and self.token_ids is not None:
            mass = position.mass(self.token_ids, untempered=untempered)
            if not may_relax(mass, protection.threshold):
                return None
        if self.importance is None or limit is None:
            return rule
        target, draft = position.untempered if untempered else position.target.probs, position.draft
        drafted = [position.token_ids[position.drafted]]
        importance = self.importance(target[None], None if draft is None else draft.probs[None], drafted).item()
        if importance > limit.max_importance:
            return None
        return scaled(rule, 1 - importance) if limit.scale and not isinstance(rule, Lossless) else rule
