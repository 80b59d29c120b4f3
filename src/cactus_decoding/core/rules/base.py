"""What rules share: the base class, their names, look-ups of probabilities, and the defaults of the protocol."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.declared import check_fields
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import AcceptanceRule, Verdict

GROUP = "cactus_decoding.rules"  # the entry points by which installed packages register rules


def registered_rules() -> tuple[EntryPoint, ...]:
    """Return the rules that installed packages have registered, without importing them."""
    return tuple(entry_points(group=GROUP))


@cache
def name_of(described: type[Any]) -> str:
    """Return the name of a rule's class in the package or in the entry-point group, else its importable path."""
    path = f"{described.__module__}:{described.__qualname__}"
    if described.__module__.startswith("cactus_decoding.") or "<locals>" in path:
        return str(described.name)
    root = described.__module__.partition(".")[0]
    near = (each for each in registered_rules() if each.module.partition(".")[0] == root)
    return next((each.name for each in near if each.value == path or each.load() is described), path)


_WHOLE_KNOBS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Family:
    """A rule with one free parameter, its knob, which result files call ``name`` and people ``label``."""

    name: str
    label: str
    spell: Callable[[float], str]  # the larger the knob, the looser the rule
    strict: float  # the range of the knob
    loose: float
    whole: bool = False  # whether the knob is an integer

    def knobs(self, points: int) -> list[float]:
        """Return ``points`` knobs over the whole range, evenly spaced in the logarithm; integers from a fixed list."""
        check_integer("points", points, 2)
        if self.whole:
            step = max(1, math.ceil(len(_WHOLE_KNOBS) / points))
            return [float(k) for k in _WHOLE_KNOBS if self.strict <= k <= self.loose][::step]
        ratio = (self.loose / self.strict) ** (1 / (points - 1))
        return [round_to(self.strict * ratio**i) for i in range(points)]


def round_to(value: float, digits: int = 4) -> float:
    """Round to significant digits, so that spellings are short.

    >>> round_to(0.123456), round_to(123456.0)
    (0.1235, 123500.0)
    """
    return float(f"{value:.{digits}g}")


def probability_of(probs: Tensor, token_ids: Tensor) -> Tensor:
    """Return float64 probabilities, ``[..., tokens]``, out of rows ``[..., vocabulary]``."""
    return probs.gather(-1, token_ids).double()


def draft_probability_of(draft_probs: Tensor | None, token_ids: Tensor) -> Tensor:
    """Like `probability_of`; a deterministic draft (None) gives any token that it proposes probability 1."""
    if draft_probs is None:
        return torch.ones(token_ids.shape, dtype=torch.float64, device=token_ids.device)
    return probability_of(draft_probs, token_ids)


class Preset(NamedTuple):
    spelling: str
    guarantee: str  # at a position, in a sentence
    choose: str  # when to choose it, in a few words


class Rule(ABC):
    """Base of the rules: frozen dataclasses whose fields are their parameters, annotated with `Setting`.

    The class attributes after the fields describe the rule; commands, pages and engines read them. q is the target's
    distribution at a position, p the draft's, h the relaxed target's, and n the drafted token.

    Attributes:
        name: the rule's name in the registry, which is also that of its module and its page.
        title: what people call it.
        summary: what it does, in one line.
        kind: ``exact``, or how a relaxed rule relaxes: by ``truncation`` (it keeps what is likely enough under the
            target) or ``collaboration`` (both models have a share in what is emitted). Rules from elsewhere need none.
        presets: spellings to start from, the usual one first.
        families: what a study of rules sweeps: one knob each, from strict to loose.
        never_stricter_than_lossless: the rule promises h(n) >= min(p(n), q(n)) wherever q(n) > 0. It then accepts
            whatever the lossless test accepts with the same random number, and need not be asked about those tokens.
        needs_support_only: the rule promises that its numbers, and its recovery target, stay the same when tokens
            with q = 0 other than the drafted one are left out of both distributions.
        needs_whole_draft_row: the rule needs p as the draft gave it, even where some tokens are proposed in any case
            and another one is drawn without them.
        recovers_from_relaxed_target: after a rejection the token is drawn from the positive part of h - p, for the h
            that the drafted token was tested against. So an engine which knows h and p can follow the rule.
        needs_target_row: beside a deterministic draft, h(n) depends on more of q than q(n).
        needs_relaxed_target: the rule accepts with h(n) and recovers from h - p, with the h of `relaxed_target`, but h
            is not a function of q alone. Code that verifies by the rule's two numbers must call `followed` first.
        lifts_one_token: h lifts the drafted token and keeps the target's proportions everywhere else.
        needs_place: the rule depends on where a position stands in a step, or on its raw logits. `bind_position` must
            be called first, and what it returns judges.
        judges_untempered: a rule for temperature 0. It judges rows from before temperature and truncation, and its cost
            is the log-probability given up.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    presets: ClassVar[tuple[Preset, ...]] = ()
    families: ClassVar[tuple[Family, ...]] = ()
    never_stricter_than_lossless: ClassVar[bool] = False
    needs_support_only: ClassVar[bool] = False
    needs_whole_draft_row: ClassVar[bool] = False
    recovers_from_relaxed_target: ClassVar[bool] = False
    needs_target_row: ClassVar[bool] = False
    needs_relaxed_target: ClassVar[bool] = False
    lifts_one_token: ClassVar[bool] = False
    needs_place: ClassVar[bool] = False
    judges_untempered: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def _say(self, **promises: bool | tuple[str, ...]) -> None:
        for name, value in promises.items():
            object.__setattr__(self, name, value)

    def bind_position(self, remaining: int, greatest_logit: float) -> Rule:
        """Return the rule that judges at one position.

        Args:
            remaining: how many proposals of the step are left, including the one at this position.
            greatest_logit: the target's largest logit there, as the model gave it.
        """
        return self

    def __str__(self) -> str:
        """Return the text that `parse_rule` turns into this rule; parameters at their default are left out."""
        return spell(name_of(type(self)), self)

    @abstractmethod
    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return h(n) and s; see `AcceptanceRule.judge`."""

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        return target_probs

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor | None:
        """Return h, ``[..., vocabulary]``; None, as here, for rules whose h depends on the drafted token."""
        return None

    def relaxed_target_beside(
        self, target_probs: Tensor, draft_probs: Tensor | None, drawn_probs: Tensor, fixed_token_ids: Tensor
    ) -> Tensor | None:
        """Return h where some tokens are proposed in any case; None if h depends on the drafted token.

        It is the h for a draft that draws from ``drawn_probs``, or for `needs_whole_draft_row` one that draws from
        ``draft_probs``. A rule that treats fixed tokens otherwise overrides this.

        Args:
            target_probs: q, ``[..., vocabulary]``.
            draft_probs: the draft's whole rows p; None where it has none.
            drawn_probs: the distribution of the drafted token: p without the fixed tokens, normalised. Where no token
                is drawn, all the mass is on the first fixed one.
            fixed_token_ids: the tokens that are proposed in any case, ``[..., tokens]``.
        """
        whole = self.needs_whole_draft_row and draft_probs is not None
        return self.relaxed_target(target_probs, draft_probs if whole else drawn_probs)  # type: ignore[arg-type]

    @property
    def lifts_absurd_tokens(self) -> bool:
        """Whether the rule lifts tokens that the target finds absurd, unless truncation (top-p, ...) excludes them."""
        return False

    def min_relaxed_prob(self, target_probs: Tensor) -> Tensor:
        """Return a cheap lower bound of h, ``[..., vocabulary]``: a token that is drafted less often is never rejected.

        It is q for rules that are never stricter than lossless, and 0 for the others.
        """
        return target_probs if self.never_stricter_than_lossless else torch.zeros_like(target_probs)


class GreedyRule(Rule):
    """A rule for temperature 0: it keeps the most likely token and some others, and recovers the most likely one."""

    needs_support_only = True
    judges_untempered = True

    @abstractmethod
    def _keeps(self, target_probs: Tensor, token_ids: Tensor) -> Tensor:
        """Return which tokens are kept, ``[..., tokens]``; the most likely one is kept in any case."""

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return 1 for tokens that are kept and 0 for others, and an infinite s: the draft plays no part."""
        check_placed(self)
        kept = self._keeps(target_probs, token_ids) | (token_ids == target_probs.argmax(-1, keepdim=True))
        return Verdict(kept.double(), torch.full_like(kept, math.inf, dtype=torch.float64))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        return most_likely(target_probs)


def most_likely(target_probs: Tensor) -> Tensor:
    """Return rows in which the most likely token, the first of equals, has all the probability."""
    return functional.one_hot(target_probs.argmax(-1), target_probs.shape[-1]).to(target_probs.dtype)


def with_rejected(kept: Tensor, p: Tensor, residual: Tensor, q: Tensor) -> Tensor:
    """Return what is kept of the draft's p, and what is rejected in the shape of a residual, or of q where it is 0."""
    total = residual.sum(-1, keepdim=True)
    return kept + (p - kept).sum(-1, keepdim=True) * torch.where(total > 0, residual / total, q)


def check_placed(rule: Rule) -> None:
    if rule.needs_place:
        raise ValueError(
            f"{rule} judges proposals by their place in a step, or by raw logits, which rows of probabilities do not "
            "tell: it works where a text is generated"
        )


@dataclass(frozen=True, eq=False)
class EmittedRows:
    """The rule that emits given rows h, ``[..., vocabulary]``: accept n with h(n), recover from (h - p)+."""

    rows: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        relaxed_prob = probability_of(self.rows.expand_as(target_probs), token_ids)
        return Verdict(relaxed_prob, torch.ones_like(relaxed_prob))

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        return self.rows.expand_as(target_probs)

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return self.rows.expand_as(target_probs)


def followed(
    rule: AcceptanceRule, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor | None = None
) -> AcceptanceRule:
    """Return a rule that two numbers and `recovery_target` describe fully: the rule itself, or one that emits its h."""
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
    """A rule that judges other rows, ``[..., vocabulary]``, than those that tokens are sampled from."""

    rule: AcceptanceRule
    rows: Tensor

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        return self.rule.judge(self.rows.expand_as(target_probs), draft_probs, token_ids)

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        return target_probs

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> None:
        return None


def relaxed_target_beside(
    rule: AcceptanceRule, target_probs: Tensor, draft_probs: Tensor | None, drawn_probs: Tensor, fixed_token_ids: Tensor
) -> Tensor | None:
    """Call `Rule.relaxed_target_beside`, or `relaxed_target` for rules without it."""
    if isinstance(rule, Rule):
        return rule.relaxed_target_beside(target_probs, draft_probs, drawn_probs, fixed_token_ids)
    return rule.relaxed_target(target_probs, drawn_probs)
