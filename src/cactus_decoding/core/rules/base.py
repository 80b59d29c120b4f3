"""What rules share: looking up the drafted token, what a rule says of itself, and the defaults of the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.declared import check_fields
from cactus_decoding.core.rules.family import Family
from cactus_decoding.core.rules.names import name_of
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import AcceptanceRule, Verdict


def probability_of(probs: Tensor, token_ids: Tensor) -> Tensor:
    """Return the float64 probabilities, ``[..., tokens]``, that rows ``[..., vocabulary]`` give some tokens."""
    return probs.gather(-1, token_ids).double()


def draft_probability_of(draft_probs: Tensor | None, token_ids: Tensor) -> Tensor:
    """Like `probability_of`; a deterministic draft (None) gives any token it proposes probability 1."""
    if draft_probs is None:
        return torch.ones(token_ids.shape, dtype=torch.float64, device=token_ids.device)
    return probability_of(draft_probs, token_ids)


class Preset(NamedTuple):
    """A spelling of a rule to start from.

    Attributes:
        spelling: the rule with its usual knobs.
        guarantee: what it guarantees at a position, in a sentence.
        choose: where to choose it, in a few words.
    """

    spelling: str
    guarantee: str
    choose: str


class Rule(ABC):
    """Base of the rules: frozen dataclasses whose fields are their parameters, annotated with `pydantic.Field`.

    What follows the fields is what a rule says of itself; commands, pages and engines read it here.

    Attributes:
        name: the rule's name in the registry, and that of its module and its page.
        title: what people call it.
        summary: what it does, in a line.
        presets: spellings to start from, the usual one first.
        families: what a study of rules sweeps: one knob each, from strict to loose.
        never_stricter_than_lossless: the rule promises h(n) >= min(p(n), q(n)) wherever q(n) > 0, so that it accepts
            whatever the lossless test accepts with the same number: it then need not be asked about those tokens.
        needs_support_only: the rule promises that its numbers, and its recovery target, stay the same when tokens
            with q = 0 other than the drafted one are left out of both rows.
        needs_whole_draft_row: the rule looks at the draft's row as it is, also where some of its tokens are proposed in
            any case and another one is drawn without them.
        recovers_from_relaxed_target: after a rejection the token is drawn from the positive part of h - p, for the h
            that the drafted token was tested against, and beside a deterministic draft h depends on q(n) alone, so that
            an engine which knows h and p can follow the rule.
        needs_relaxed_target: it emits the rows h of `relaxed_target`, accepts with h(n), and recovers from h - p, but h
            is no function of q alone, so that what verifies by its numbers must ask for these rows (`followed`).
        scalable: the knobs of which 0 is lossless and more is looser.
        lifts_one_token: that h lifts the drafted token and keeps the target's proportions everywhere else.
        needs_place: what judges is what `placed` returns: it depends on where a position stands, or on its raw logits.
        judges_untempered: a rule for temperature 0: it judges rows from before temperature and truncation, and what it
            costs is the log-probability given up.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    presets: ClassVar[tuple[Preset, ...]] = ()
    families: ClassVar[tuple[Family, ...]] = ()
    never_stricter_than_lossless: ClassVar[bool] = False
    needs_support_only: ClassVar[bool] = False
    needs_whole_draft_row: ClassVar[bool] = False
    recovers_from_relaxed_target: ClassVar[bool] = False
    needs_relaxed_target: ClassVar[bool] = False
    scalable: ClassVar[tuple[str, ...]] = ()
    lifts_one_token: ClassVar[bool] = False
    needs_place: ClassVar[bool] = False
    judges_untempered: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the parameters; rules with more to check extend this."""
        check_fields(self)

    def _say(self, **promises: bool) -> None:
        """Say something else of this rule than of its class, because of its knobs."""
        for name, value in promises.items():
            object.__setattr__(self, name, value)

    def placed(self, remaining: int, greatest_logit: float) -> Rule:
        """Return what judges a position.

        Args:
            remaining: how many proposals of the step are left, its own included.
            greatest_logit: the largest of the target's there, as the model gave it.
        """
        return self

    def __str__(self) -> str:
        """Return the text that `parse_rule` turns into this rule; parameters at their default are left out."""
        return spell(name_of(type(self)), self)

    @abstractmethod
    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the two numbers; see `AcceptanceRule.judge`."""

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Recover from the target's own rows."""
        return target_probs

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor | None:
        """Say that h depends on the drafted token; rules for which it does not return its rows."""
        return None

    def relaxed_target_beside(
        self, target_probs: Tensor, draft_probs: Tensor | None, drawn_probs: Tensor, fixed_token_ids: Tensor
    ) -> Tensor | None:
        """Return h as rows where some tokens are proposed in any case, if it does not depend on the drafted one.

        It is that of a draft which draws from ``drawn_probs``, or for `needs_whole_draft_row` of one which draws from
        ``draft_probs``. A rule that treats fixed tokens otherwise overrides this.

        Args:
            target_probs: q, ``[..., vocabulary]``.
            draft_probs: the draft's whole rows p; None where it has none.
            drawn_probs: the law of the drafted token: p without the fixed tokens, normalised; all on the first fixed
                token where none is drawn.
            fixed_token_ids: those that are proposed in any case, ``[..., tokens]``.
        """
        whole = self.needs_whole_draft_row and draft_probs is not None
        return self.relaxed_target(target_probs, draft_probs if whole else drawn_probs)  # type: ignore[arg-type]

    @property
    def lifts_absurd_tokens(self) -> bool:
        """Whether the rule lifts tokens that the target finds absurd, unless truncation (top-p, ...) excludes them."""
        return False

    def min_relaxed_prob(self, target_probs: Tensor) -> Tensor:
        """Return a bound that is cheap to have: no token that is drafted less often than this is ever rejected.

        It is q for rules that are never stricter than lossless, and 0 for the others; ``[..., vocabulary]``.
        """
        return target_probs if self.never_stricter_than_lossless else torch.zeros_like(target_probs)


def check_placed(rule: Rule) -> None:
    """Raise `ValueError` for a rule that is asked about rows alone, though it needs to know their place or logits."""
    if rule.needs_place:
        raise ValueError(
            f"{rule} judges proposals by their place in a step, or by raw logits, which rows of probabilities do not "
            "tell: it works where a text is generated"
        )


@dataclass(frozen=True, eq=False)
class EmittedRows:
    """The rule that emits given rows h: accept n with h(n), recover from (h - p)+.

    Attributes:
        rows: h at each position, ``[..., vocabulary]`` in float64.
    """

    rows: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return h(n) and 1: recovery starts from h itself."""
        relaxed_prob = probability_of(self.rows.expand_as(target_probs), token_ids)
        return Verdict(relaxed_prob, torch.ones_like(relaxed_prob))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Recover from h."""
        return self.rows.expand_as(target_probs)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h."""
        return self.rows.expand_as(target_probs)


def followed(
    rule: AcceptanceRule, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor | None = None
) -> AcceptanceRule:
    """Return what says all of a rule by two numbers and `recovery_target`: itself, or the rule that emits its rows.

    Where the draft is deterministic, of one token a row, ``[..., 1]``.
    """
    if not getattr(rule, "needs_relaxed_target", False):
        return rule
    if draft_probs is None:
        assert token_ids is not None
        draft_probs = torch.zeros_like(target_probs).scatter(-1, token_ids, 1.0)
    relaxed = rule.relaxed_target(target_probs, draft_probs)
    assert relaxed is not None
    return EmittedRows(relaxed)


@dataclass(frozen=True, eq=False)
class JudgedOn:
    """A rule that is asked about other rows than those that are sampled from.

    Attributes:
        rule: the rule.
        rows: what it judges on, ``[..., vocabulary]``.
    """

    rule: AcceptanceRule
    rows: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the rule's two numbers on its rows."""
        return self.rule.judge(self.rows.expand_as(target_probs), draft_probs, token_ids)

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Recover from the rows that are sampled from."""
        return target_probs

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        """Say that there are no rows that are emitted whatever is drafted."""
        return None


def relaxed_target_beside(
    rule: AcceptanceRule,
    target_probs: Tensor,
    draft_probs: Tensor | None,
    drawn_probs: Tensor,
    fixed_token_ids: Tensor,
) -> Tensor | None:
    """Return h where some tokens are proposed in any case; see `Rule.relaxed_target_beside`, which not every rule has.

    Example:
        >>> from cactus_decoding.core.rules import ClampedRatio
        >>> q, drawn = torch.tensor([0.25, 0.25, 0.5]).double(), torch.tensor([0.0, 0.2, 0.8]).double()
        >>> relaxed_target_beside(ClampedRatio(width=0.7), q, None, drawn, torch.tensor([0]))[0] > 0.25
        tensor(True)
    """
    if isinstance(rule, Rule):
        return rule.relaxed_target_beside(target_probs, draft_probs, drawn_probs, fixed_token_ids)
    return rule.relaxed_target(target_probs, drawn_probs)
