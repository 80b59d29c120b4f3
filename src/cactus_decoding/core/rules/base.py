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
from cactus_decoding.core.types import AcceptanceRule, Verdict, Visit

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

    A rule is of one of three kinds, by the class that it derives from. A `RowRule` gives the relaxed target h, a
    `LiftRule` the probability that the drafted token is lifted to, and a `GreedyRule` says which tokens are kept at
    temperature 0. One that is none of them gives its `Verdict` itself. The class attributes after the fields describe
    the rule; commands, pages and engines read them. q is the target's distribution at a position, p the draft's, and n
    the drafted token.

    Attributes:
        name: the rule's name in the registry, which is also that of its module and its page.
        title: what people call it.
        summary: what it does, in one line.
        kind: ``exact``, or how a relaxed rule relaxes: by ``truncation`` (it keeps what is likely enough under the
            target) or ``collaboration`` (both models have a share in what is emitted). Rules from elsewhere need none.
        presets: spellings to start from, the usual one first.
        families: what a study of rules sweeps: one knob each, from strict to loose.
        never_stricter: the rule promises h(n) >= min(p(n), q(n)) wherever q(n) > 0. It then accepts whatever the
            lossless test accepts with the same random number, and need not be asked about those tokens.
        support_only: the rule promises that its verdict stays the same when tokens with q = 0 other than the drafted
            one are left out of both distributions.
        drafted_only: the rule promises that beside a deterministic draft h(n) depends on q(n) alone.
        whole_draft_row: the rule needs p as the draft gave it, even where some tokens are proposed in any case and
            another one is drawn without them.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    presets: ClassVar[tuple[Preset, ...]] = ()
    families: ClassVar[tuple[Family, ...]] = ()
    never_stricter: ClassVar[bool] = False
    support_only: ClassVar[bool] = False
    drafted_only: ClassVar[bool] = False
    whole_draft_row: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def _say(self, **promises: bool) -> None:
        for name, value in promises.items():
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        """Return the text that `parse_rule` turns into this rule; parameters at their default are left out."""
        return spell(name_of(type(self)), self)

    @abstractmethod
    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return h(n), s and what recovery starts from; see `AcceptanceRule.judge`."""

    def min_relaxed_prob(self, target_probs: Tensor) -> Tensor:
        """Return a cheap lower bound of h, ``[..., vocabulary]``: a token that is drafted less often is never rejected.

        It is q for rules that are never stricter than lossless, and 0 for the others.
        """
        return target_probs if self.never_stricter else torch.zeros_like(target_probs)


class RowRule(Rule):
    """A rule that gives the relaxed target h, whatever is drafted: it accepts with h(n), and so emits h.

    ``judge`` follows from that. A subclass may give other numbers that accept and emit the same and are less work, but
    then it keeps its promises to the last bit itself.
    """

    @property
    def draws(self) -> bool:
        """Whether the rule emits h without a test on it: it tests as `judge` says, and accepts less than h allows."""
        return False

    @abstractmethod
    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        """Return h, ``[..., vocabulary]``, which sums to 1 and is 0 where q is."""

    def relaxed_target_beside(
        self, target_probs: Tensor, draft_probs: Tensor | None, drawn_probs: Tensor, fixed_token_ids: Tensor
    ) -> Tensor:
        """Return h where some tokens are proposed in any case.

        It is the h for a draft that draws from ``drawn_probs``, or for `whole_draft_row` one that draws from
        ``draft_probs``. A rule that treats fixed tokens otherwise overrides this.

        Args:
            target_probs: q, ``[..., vocabulary]``.
            draft_probs: the draft's whole rows p; None where it has none.
            drawn_probs: the distribution of the drafted token: p without the fixed tokens, normalised. Where no token
                is drawn, all the mass is on the first fixed one.
            fixed_token_ids: the tokens that are proposed in any case, ``[..., tokens]``.
        """
        whole = self.whole_draft_row and draft_probs is not None
        return self.relaxed_target(target_probs, draft_probs if whole else drawn_probs)  # type: ignore[arg-type]

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return h(n), 1 and h; h(n) is at least min(p(n), q(n)) where the rule promises that, rounding or not."""
        if draft_probs is not None:
            h = self.relaxed_target(target_probs, draft_probs)
            relaxed_prob = probability_of(h, token_ids)
        else:
            certain = functional.one_hot(token_ids, target_probs.shape[-1]).to(target_probs.dtype)
            h = self.relaxed_target(target_probs.unsqueeze(-2).expand_as(certain), certain)
            relaxed_prob = h.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1).double()
        if self.never_stricter:
            q, p = probability_of(target_probs, token_ids), draft_probability_of(draft_probs, token_ids)
            relaxed_prob = torch.maximum(relaxed_prob, torch.minimum(p, q))
        return Verdict(relaxed_prob, torch.ones_like(relaxed_prob), h)


class LiftRule(Rule):
    """A rule that lifts the drafted token n from q(n) to g, and scales all others by s = (1 - g) / (1 - q(n))."""

    never_stricter = True
    support_only = True
    drafted_only = True

    @abstractmethod
    def lift(self, target_prob: Tensor) -> Tensor:
        """Return g from q(n), in float64; what is below q(n) counts as q(n), and what is above 1 as 1."""

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return g and s; nothing is lifted that the target excludes."""
        q = probability_of(target_probs, token_ids)
        g = torch.where(q > 0, torch.maximum(self.lift(q), q).clamp(max=1.0), 0.0)
        return Verdict(g, torch.where(q < 1, (1 - g) / (1 - q), 1.0))

    @property
    def lifts_absurd_tokens(self) -> bool:
        """Whether the rule lifts tokens that the target finds absurd, unless truncation (top-p, ...) excludes them."""
        return self.lift(torch.tensor(_ABSURD, dtype=torch.float64)).item() > _ABSURD * _UNBOUNDED


_ABSURD, _UNBOUNDED = 1e-200, 1e50  # of such a probability, and by what factor only rules lift that bound none


class GreedyRule(Rule):
    """A rule for temperature 0: it keeps the most likely token and some others, and recovers the most likely one.

    It judges rows from before temperature and truncation, and its cost is the log-probability given up.
    """

    @abstractmethod
    def keeps(self, target_probs: Tensor, token_ids: Tensor) -> Tensor:
        """Return which tokens are kept, ``[..., tokens]``; the most likely one is kept in any case."""

    def bind_position(self, remaining: int, greatest_logit: float) -> GreedyRule:
        """Return the rule that judges at one position; a rule that depends on the place overrides this.

        Args:
            remaining: how many proposals of the step are left, including the one at this position.
            greatest_logit: the target's largest logit there, as the model gave it.
        """
        return self

    def accepts(self, target_probs: Tensor, token_ids: Tensor) -> Tensor:
        return self.keeps(target_probs, token_ids) | (token_ids == target_probs.argmax(-1, keepdim=True))

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return 1 for tokens that are kept and 0 for others, and an infinite s: the draft plays no part."""
        kept = self.accepts(target_probs, token_ids)
        return Verdict(kept.double(), torch.full_like(kept, math.inf, dtype=torch.float64), most_likely(target_probs))


def most_likely(target_probs: Tensor) -> Tensor:
    """Return rows in which the most likely token, the first of equals, has all the probability."""
    return functional.one_hot(target_probs.argmax(-1), target_probs.shape[-1]).to(target_probs.dtype)


def with_rejected(kept: Tensor, p: Tensor, residual: Tensor, q: Tensor) -> Tensor:
    """Return what is kept of the draft's p, and what is rejected in the shape of a residual, or of q where it is 0."""
    total = residual.sum(-1, keepdim=True)
    return kept + (p - kept).sum(-1, keepdim=True) * torch.where(total > 0, residual / total, q)


def needs_place(rule: Rule) -> ValueError:
    return ValueError(
        f"{rule} judges proposals by their place in a step, or by raw logits, which rows of probabilities do not "
        "tell: it works where a text is generated"
    )


def row_rule(rule: AcceptanceRule) -> RowRule | None:
    """Return a rule as one that is tested by its h; None for others, whose h depends on the drafted token."""
    return rule if isinstance(rule, RowRule) and not rule.draws else None


def verdict_on(visit: Visit) -> Verdict:
    """Return what the rule at a visit says of its drafted token, which has no siblings; numbers of ``[1]``."""
    greedy = isinstance(visit.rule, GreedyRule)
    judged = visit.rows.untempered_of(visit.node) if greedy else visit.target_probs
    return visit.rule.judge(judged, visit.draft_probs, torch.tensor([visit.token_id], device=judged.device))
