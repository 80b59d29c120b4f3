"""The rules that feed every property test, their numbers by a second hand, and rules that are deliberately wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.core.divergences.f_divergences import DIVERGENCES
from cactus_decoding.core.rules import RULES, Rule, parse_rule
from cactus_decoding.core.rules.base import RowRule
from cactus_decoding.core.types import AcceptanceRule, Verdict
from support.tables import groups_of

# Every registered rule with every variant of its parameters: limits at which it is lossless, ordinary and huge values.
SPELLINGS = (
    "lossless",
    "cactus:delta=0",
    "cactus:delta=0.01",
    "cactus:delta=1",
    "cactus:delta=30",
    "cactus:delta=1,max_ratio=1",
    "cactus:delta=1,max_ratio=1.5",
    "cactus:delta=0,solver=exact",
    "cactus:delta=0.01,solver=exact",
    "cactus:delta=1,solver=exact",
    "cactus:delta=30,solver=exact",
    "cactus:delta=1,solver=exact,max_ratio=1.5",
    *(f"cactus:delta=0.1,divergence={name}" for name in DIVERGENCES if DIVERGENCES[name].curvature is not None),
    *(f"cactus:delta=0.1,solver=exact,divergence={name}" for name in DIVERGENCES),
    "ensemble:weight=0",
    "ensemble:weight=0.3",
    "ensemble:weight=1",
    "lenience:lenience=1",
    "lenience:lenience=0.6",
    "lenience:lenience=0.01",
    "lenience:lenience=1,residual=plain",
    "lenience:lenience=0.6,residual=plain",
    "clamped:width=0",
    "clamped:width=0.1",
    "clamped:width=1",
    "clamped:width=30",
    "clamped:max_kl=0",
    "clamped:max_kl=0.1",  # one cap only, out of reach for some rows: its root within a root takes time
    "typical",
    "typical:recovery=sample",
    "typical:threshold=0,alpha=0",
    "typical:threshold=0.4,alpha=2,recovery=sample",
    "top_k:k=1",
    "top_k:k=2",
    "top_k:k=2,residual=mask",
    "top_k:k=1000",
    "relaxed_greedy:margin=0",
    "relaxed_greedy:margin=0.5",
    "relaxed_greedy:margin=2,top=2",
    "cascade:alpha=-2",
    "cascade:alpha=0.1",
    "cascade:alpha=-0.1,defer=diff",
    "cascade:alpha=0.4,defer=chow",
    "cascade:alpha=0.1,temperature=0.5",
    "token_cascade:alpha=-2",
    "token_cascade:alpha=0.6",
    "token_cascade:alpha=0.2,version=v2",
    "token_cascade:alpha=0.1,version=v1",
    "token_cascade:alpha=0.3,version=v2,temperature=2",
    "token_cascade:alpha=0.6,coupling=paper",
    "token_cascade:alpha=0.2,version=v2,coupling=paper",
    "token_cascade:alpha=0.1,version=v1,coupling=paper",
    "fuzzy:threshold=0",
    "fuzzy:threshold=0.1",
    "fuzzy:threshold=0.1,divergence=js_code",
    "fuzzy:threshold=0.5,divergence=kl",
    "fuzzy:threshold=0.4,divergence=tv",
    "fuzzy:threshold=0.05,top=1",
    "fuzzy:threshold=0.1,closed=draw",
    "fuzzy:threshold=0.1,temperature=0.5",
    "fuzzy:threshold=0.2,divergence=kl,temperature=2",
    "kl_gate:threshold=0",
    "kl_gate:threshold=0.5",
    "big_little:rollback=0",
    "big_little:rollback=1.5",
    "mars:ratio=1",
    "mars:ratio=0.6",
    "mars:ratio=0",
    "ears:tolerance=0",
    "ears:tolerance=0.4",
    "ears:tolerance=1",
    "ears:tolerance=0.4,floor=0.3",
    "contrastive:beta=0,alpha=0",
    "contrastive:beta=0.5",
    "contrastive:beta=2,alpha=0",
    "contrastive:beta=0.3,alpha=1",
)

# Rules with h(n) >= min(p(n), q(n)) for every drafted n with q(n) > 0: they accept whatever the lossless test accepts.
NEVER_STRICTER_THAN_LOSSLESS = tuple(
    text
    for text in SPELLINGS
    if text.partition(":")[0]
    in ("lossless", "cactus", "ensemble", "lenience", "clamped", "ears", "cascade", "fuzzy", "kl_gate")
    and "closed=draw" not in text
    and "floor" not in text
)

# Limits at which a rule must be lossless token for token.
LOSSLESS_LIMITS = (
    "cactus:delta=0",
    "cactus:delta=0,solver=exact",
    "cactus:delta=1,max_ratio=1",
    "ensemble:weight=0",
    "lenience:lenience=1",
    "lenience:lenience=1,residual=plain",
    "clamped:width=0",
    "clamped:max_kl=0",
    "cascade:alpha=-2",
    "cascade:alpha=-2,defer=diff",
    "cascade:alpha=-2,defer=chow",
    "token_cascade:alpha=-2",
    "token_cascade:alpha=-2,version=v1",
    "token_cascade:alpha=-2,version=v2",
    "token_cascade:alpha=-2,coupling=paper",
    "fuzzy:threshold=0",
    "fuzzy:threshold=0,divergence=js_code",
    "fuzzy:threshold=0,divergence=kl",
    "fuzzy:threshold=0,divergence=tv",
    "fuzzy:threshold=0,top=1",
    "ears:tolerance=0",
    "ears:tolerance=0,floor=0.3",
    "kl_gate:threshold=0",
    "contrastive:beta=0,alpha=0",
)

# One of each class of rules, and of each way to solve, for `make test`; the others are for `make test-all`.
ORDINARY = {
    "lossless",
    "cactus:delta=1",
    "cactus:delta=1,solver=exact",
    "ensemble:weight=0.3",
    "lenience:lenience=0.6",
    "clamped:width=1",
    "typical",
    "top_k:k=2",
    "relaxed_greedy:margin=0.5",
    "cascade:alpha=0.1",
    "token_cascade:alpha=0.6",
    "fuzzy:threshold=0.1",
    "kl_gate:threshold=0.5",
    "big_little:rollback=1.5",
    "mars:ratio=0.6",
    "ears:tolerance=0.4",
    "contrastive:beta=0.5",
}

for _table, _spellings in (("SPELLINGS", SPELLINGS), ("ORDINARY", ORDINARY.intersection(SPELLINGS))):
    if _missing := set(RULES) - {parse_rule(text).name for text in _spellings}:
        raise AssertionError(f"{_table} has no spelling under test of {', '.join(sorted(_missing))}")


def every_rule(spellings: Iterable[str] = SPELLINGS, name: str = "spelling") -> Callable:
    """Run a test of a rule's spelling for one knob of each class, and in one slow case a class for all its others."""
    classes: dict[str, list[str]] = {}
    for text in spellings:
        classes.setdefault(parse_rule(text).name, []).append(text)
    groups, slow = {}, []
    for rule, knobs in classes.items():
        ordinary = [text for text in knobs if text in ORDINARY] or knobs[:1]
        groups |= {text: [text] for text in ordinary}
        if others := [text for text in knobs if text not in ordinary]:
            slow.append(f"{rule}, other knobs")
            groups[slow[-1]] = others
    return groups_of(name, groups, slow=slow)


def expected_numbers(rule: Rule, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two numbers of every token of one row, written down once more from the papers' formulas."""
    q, p = target, draft
    one, infinite = torch.ones_like(q), torch.full_like(q, math.inf)
    match str(rule).partition(":")[0]:
        case "lossless":
            return q, one
        case "cactus":
            g = (q + (2 * rule.delta * q * (1 - q)).sqrt()).clamp(max=1)
            return g, torch.where(q < 1, (1 - g) / (1 - q), 1.0)
        case "ensemble":
            return torch.where(q > 0, rule.weight * p + (1 - rule.weight) * q, 0.0), one
        case "ears":
            tolerated = rule.tolerance * (1 - max(q.tolist()))
            passing = (q > 0) & (q >= rule.floor * p * (rule.tolerance > 0))
            return torch.where(passing, q + tolerated * p, 0.0), one
        case "lenience":
            return q / rule.lenience, one if rule.residual == "plain" else one / rule.lenience
        case "contrastive":
            least = min([b for a, b in zip(q.tolist(), p.tolist(), strict=True) if a and b], default=1.0)
            scores = [
                math.log(a) + rule.beta * (math.log(a) - math.log(b or least))
                if a and a >= rule.alpha * max(q.tolist())
                else -math.inf
                for a, b in zip(q.tolist(), p.tolist(), strict=True)
            ]
            weights = [math.exp(each - max(scores)) for each in scores]
            return torch.tensor(weights, dtype=torch.float64) / sum(weights), one
        case "relaxed_greedy":
            best = torch.arange(len(q)) == q.argmax()
            high = q >= q.sort(descending=True).values[min(rule.top or len(q), len(q)) - 1]
            within = (q > 0) & (q >= q.max() * math.exp(-rule.margin) * (1 - 1e-12)) & high & (rule.margin > 0)
            return (best | within).double(), infinite
        case "mars":
            logits = [math.log(x) for x in q.tolist() if x > 0]
            first, *others = sorted((each - sum(logits) / len(logits) for each in logits), reverse=True)
            close = bool(others) and others[0] > rule.ratio * first and rule.ratio < 1
            seconds = (q > 0) & (q == q.sort(descending=True).values[1]) if close else torch.zeros(len(q)).bool()
            return (seconds | (torch.arange(len(q)) == q.argmax())).double(), infinite
        case "big_little":
            best = torch.arange(len(q)) == q.argmax()
            return (best | (q >= math.exp(-rule.rollback)) & (rule.rollback > 0)).double(), infinite
        case "typical":
            entropy = sum(-x * math.log(x) for x in q.tolist() if x > 0)
            return (q > min(rule.threshold, rule.alpha * math.exp(-entropy))).double(), infinite
        case "fuzzy" if rule.closed == "draw" and not gate_is_open(rule, q.tolist(), p.tolist()):
            return torch.zeros_like(q), infinite
        case "cascade" | "fuzzy" | "kl_gate":
            return torch.where(q > 0, p, 0.0) if gate_is_open(rule, q.tolist(), p.tolist()) else q, one
        case "token_cascade":
            own, (q, p) = (q, p), (raised(row, rule.temperature) for row in (q, torch.where(q > 0, p, 0)))
            best = max(q.tolist())
            passing = {"v1": p >= best - rule.alpha, "v2": q >= best - rule.alpha, "v3": q >= best - best * rule.alpha}[
                rule.version
            ] & (q > 0)
            q, p = own
            if rule.coupling == "paper":
                return torch.where(passing, p, 0) + (1 - p[passing].sum()) * q, one
            return (passing.double(), infinite) if passing.any() else (q, one)
        case _:
            assert rule.name == "top_k"
            kth = sorted(q.tolist(), reverse=True)[: rule.k][-1]
            return ((q >= kth) & (q > 0)).double(), infinite


def raised(row: Tensor, temperature: float) -> Tensor:
    """Return a row from before a temperature, what was cut off of it left out."""
    logits = [math.log(x) * temperature if x > 0 else -math.inf for x in row.tolist()]
    return row.sum() * torch.tensor(logits, dtype=torch.float64).softmax(-1).nan_to_num(0.0)


def gate_is_open(rule: Rule, q: list[float], p: list[float]) -> bool:
    """Say whether a gated rule leaves a position to the draft, from the papers' formulas."""

    def kl(first: list[float], second: list[float]) -> float:
        return sum(a * math.log(a / b) if b else math.inf for a, b in zip(first, second, strict=True) if a)

    kept = [b if a else 0.0 for a, b in zip(q, p, strict=True)]
    if getattr(rule, "temperature", 1) != 1:
        beyond = [b - own for b, own in zip(p, kept, strict=True)]
        q, kept = (raised(torch.tensor(row, dtype=torch.float64), rule.temperature).tolist() for row in (q, kept))
        p = [b + own for b, own in zip(beyond, kept, strict=True)]
    lost, tv = 1 - sum(kept), sum(max(a - b, 0.0) for a, b in zip(q, p, strict=True))
    if rule.name == "cascade":
        floor = {"chow": 1, "diff": max(q), "opt": max(q)}[rule.defer]
        return max(kept) >= floor - rule.alpha * (tv if rule.defer == "opt" else 1)
    if rule.name == "kl_gate":
        return kl(q, kept) < rule.threshold and max(q) <= rule.confidence
    if rule.top:
        held = [a >= sorted(q)[-min(rule.top, len(q))] for a in q]
        q, kept = (
            [*itertools.compress(row, held), sum(a for a, own in zip(row, held, strict=True) if not own)]
            for row in (q, kept)
        )
        q, kept, p = [*q, 0.0], [*kept, 0.0], [*kept, lost]
        tv = sum(max(a - b, 0.0) for a, b in zip(q, p, strict=True))
    middle = [(a + b) / 2 for a, b in zip(q, p, strict=True)]
    inside = [m if a else 0.0 for a, m in zip(q, middle, strict=True)]
    distance = {
        "tv": tv,
        "kl": kl(kept, q) + lost,
        "js": (kl(q, middle) + kl(p, middle)) / 2,
        "js_code": (kl(inside, kept) + kl(inside, q)) / 2,
    }[rule.divergence]
    return distance < rule.threshold


@dataclass(frozen=True)
class Altered:
    """A wrong rule: a right one whose two numbers are changed.

    Attributes:
        right: the rule that is spoilt.
        acceptance_factor: multiplies the relaxed probability.
        residual_scale: replaces s; 1 recovers from q's residual instead of h's, infinity from q itself.
        accept_equality: turns the strict test ``u p < h`` into ``u p <= h``.
    """

    right: AcceptanceRule
    acceptance_factor: float = 1.0
    residual_scale: float | None = None
    accept_equality: bool = False

    def __str__(self) -> str:
        return f"altered {self.right!s}"

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        relaxed_prob, scale, recovery = self.right.judge(target_probs, draft_probs, token_ids)
        relaxed_prob = relaxed_prob * self.acceptance_factor
        if self.accept_equality:  # u p <= h exactly when u p < the next float above h
            relaxed_prob = torch.nextafter(relaxed_prob, torch.full_like(relaxed_prob, math.inf))
        if self.residual_scale is not None:
            scale = torch.full_like(scale, self.residual_scale)
        return Verdict(relaxed_prob, scale, recovery)


class Always:
    """A rule that says the same of every token: with 0 nothing is left where models agree, with 1 nothing excluded."""

    def __init__(self, relaxed_prob: float) -> None:
        self._relaxed_prob = relaxed_prob

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        one = torch.ones(token_ids.shape, dtype=torch.float64)
        return Verdict(self._relaxed_prob * one, one)


@dataclass(frozen=True, eq=False)
class Emitting(RowRule):
    """The rule that emits given rows h, ``[..., vocabulary]``."""

    rows: Tensor

    name = "emitting"

    def __post_init__(self) -> None:
        pass  # a tensor is no parameter

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return self.rows.expand_as(target_probs)
