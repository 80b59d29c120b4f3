"""Where a response may be relaxed at all: what is protected or too important, in which phases, and after what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, cast

from cactus_decoding.core.declared import Model, Setting, build, settings_of, values_of
from cactus_decoding.core.policy.importance import Importance, ImportanceLimit
from cactus_decoding.core.policy.phases import Phases, PhaseState
from cactus_decoding.core.policy.protection import Protection, may_relax
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.types import AcceptanceRule

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
        int, Setting("Relax only where proposals were rejected so often before for the same two tokens.", "times", ge=1)
    ]
    ratio: Annotated[
        float,
        Setting(
            "There, the least probability of the draft's token over the target's likeliest.",
            ge=0,
            le=1,
            flat="recurring_ratio",
        ),
    ] = 0.0

    def __str__(self) -> str:
        gate = f" of at least {self.ratio:g} of the likeliest" if self.ratio else ""
        return f"after {self.recurring} like rejections{gate}"

    def relaxes(self, rule: AcceptanceRule, seen: Sequence[Pair], position: Position, pair: Pair) -> bool:
        """Return whether a position, whose pair is known, may be relaxed after the rejections that have been seen."""
        if seen.count(pair) < self.recurring:
            return False
        row = position.judged_row(rule)
        return row[pair[0]].item() >= self.ratio * row[pair[1]].item()


def pair_at(rule: AcceptanceRule, position: Position) -> Pair:
    draft = position.draft_row
    drafted = position.token_ids[position.drafted] if draft is None else int(draft.argmax())
    return drafted, int(position.judged_row(rule).argmax())


def with_rejection(seen: tuple[Pair, ...], pair: Pair) -> tuple[Pair, ...]:
    """Return the rejections after one more; where the models agree there is nothing to learn.

    >>> with_rejection(((1, 2),), (1, 2)), with_rejection((), (3, 3))
    (((1, 2), (1, 2)), ())
    """
    return seen if pair[0] == pair[1] else (*seen, pair)


class RelaxationPolicy(Model):
    """Where a rule may relax; everywhere else positions are judged losslessly, and cost nothing.

    It depends on both models' rows and on the tokens before a position, never on the drafted token. So a rule under a
    policy has a relaxed target wherever the rule itself has one, and every guarantee holds.
    """

    protection: Protection | None = None
    limit: Annotated[ImportanceLimit | None, Setting(group="importance")] = None
    phases: Phases = Phases()
    memory: RejectionMemory | None = None

    @property
    def everywhere(self) -> bool:
        return self == RelaxationPolicy()

    def __str__(self) -> str:
        """The policy for people, such as ``protecting digits``; empty if it forbids nothing."""
        said = []
        if self.protection is not None:
            above = "" if self.protection.threshold == 0.01 else f" above {self.protection.threshold:g}"
            said.append(f"protecting {self.protection.pattern}{above}")
        if self.limit is not None:
            said.append(str(self.limit))
        if self.phases.lossless_tokens:
            said.append(f"after {self.phases.lossless_tokens} tokens")
        if self.phases.plain_marks:
            said.append("within {} {}".format(*self.phases.plain_marks))
        if self.memory is not None:
            said.append(str(self.memory))
        return ", ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as flat names and plain values: the arguments of `relaxation_policy`."""
        return values_of(RelaxationPolicy, self)

    def fit(self, tokenizer: Any, size: int) -> FittedPolicy | None:
        if self.everywhere:
            return None
        reads_texts = self.protection is not None or self.limit is not None or self.phases.reads_text
        return self.fit_vocabulary(Vocabulary.of(tokenizer, size) if reads_texts else Vocabulary(()))

    def fit_vocabulary(self, vocabulary: Vocabulary) -> FittedPolicy:
        mask = None if self.protection is None else self.protection.mask(vocabulary)
        importance = None if self.limit is None else self.limit.fit(vocabulary)
        return FittedPolicy(vocabulary, self.phases, self.protection, mask, self.limit, importance, self.memory)


POLICY_SETTINGS = tuple(settings_of(RelaxationPolicy))  # the flat names that a request may set


def relaxation_policy(*values: Any, **settings: Any) -> RelaxationPolicy:
    given = dict(zip(POLICY_SETTINGS, values, strict=False)) | settings
    if unknown := [name for name in given if name not in POLICY_SETTINGS]:
        raise TypeError(f"a relaxation policy has no {unknown[0]!r}; known are {', '.join(POLICY_SETTINGS)}")
    given = {name: value for name, value in given.items() if value is not None}
    policy = build(RelaxationPolicy, given)
    assert policy is not None
    return policy


def check_scalable(rule: AcceptanceRule) -> None:
    from cactus_decoding.core.rules import RULES, Lossless

    if not isinstance(rule, Lossless) and not getattr(rule, "scalable", ()):
        known = [name for name, each in RULES.items() if each.scalable]
        raise ValueError(
            f"importance_scale multiplies a knob of which 0 is lossless, as {', '.join(known)} have one; the rule "
            f"{rule} has none"
        )


def scaled(rule: AcceptanceRule, factor: float) -> AcceptanceRule:
    """Return a rule with its knob multiplied by a factor, 0 for lossless; raise `ValueError` for a rule without one."""
    from cactus_decoding.core.rules.base import Rule

    check_scalable(rule)
    if not isinstance(rule, Rule):
        return rule
    knobs = {name: factor * knob for name in rule.scalable if (knob := getattr(rule, name)) is not None}
    return cast("Rule", replace(cast("Any", rule), **knobs))


@dataclass(frozen=True, eq=False)
class FittedPolicy:
    vocabulary: Vocabulary
    phases: Phases
    protection: Protection | None = None
    mask: Tensor | None = None  # the protected tokens, ``[vocabulary]``
    limit: ImportanceLimit | None = None
    importance: Importance | None = None
    memory: RejectionMemory | None = None

    @cached_property
    def token_ids(self) -> Tensor | None:
        """The protected tokens, ascending, ``[tokens]``; None if there are none."""
        return None if self.mask is None else self.mask.nonzero().squeeze(1)

    def begin(self, prompt_ids: Sequence[int]) -> PhaseState:
        return self.phases.begin(prompt_ids, self.vocabulary)

    def after(self, state: PhaseState, token_ids: Sequence[int]) -> PhaseState:
        return self.phases.after(state, token_ids, self.vocabulary)

    def pair_at(self, rule: AcceptanceRule, position: Position) -> Pair | None:
        """Return what a rejection at a position is remembered as; None if nothing is remembered."""
        return None if self.memory is None else pair_at(rule, position)

    def rule_at(
        self,
        rule: AcceptanceRule,
        state: PhaseState,
        position: Position,
        pair: Pair | None = None,
        seen: Sequence[Pair] = (),
    ) -> AcceptanceRule | None:
        """Return the rule for a position, its knob scaled by importance where that is asked; None for lossless.

        ``pair`` is what `pair_at` says of the position, and ``seen`` are the rejections of earlier steps.

        Importance is computed here and not once a step, because a walk reads only the rows of nodes that it visits.
        """
        from cactus_decoding.core.rules import Lossless

        if not self.phases.relaxes(state):
            return None
        if self.protection is not None and self.token_ids is not None:
            mass = position.mass(self.token_ids, untempered=isinstance(rule, GreedyRule))
            if not may_relax(mass, self.protection.threshold):
                return None
        if self.memory is not None and (pair is None or not self.memory.relaxes(rule, seen, position, pair)):
            return None
        if self.importance is None or self.limit is None:
            return rule
        draft = None if position.draft is None else position.draft.probs[None]
        drafted = [position.token_ids[position.drafted]]
        importance = self.importance(position.judged_row(rule)[None], draft, drafted).item()
        if importance > self.limit.max_importance:
            return None
        return scaled(rule, 1 - importance) if self.limit.scale and not isinstance(rule, Lossless) else rule
