"""One position of a step at which tokens are proposed, as a policy, a rule and a way to verify see it."""

from __future__ import annotations

import math
import sys
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.divergences.rows import kl_of_rows, total
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.rules.base import GreedyRule, row_rule
from cactus_decoding.core.sampling.rows import LazyRows, SparseProbs
from cactus_decoding.core.types import AcceptanceRule, StepRows, Verdict

if TYPE_CHECKING:
    from cactus_decoding.core.audit import Audit


NEEDS_RELAXED_TARGET = (
    "{how} needs a rule whose relaxed target does not depend on the drafted token, such as lossless or clamped, but "
    "the rule is {rule}"
)


class Distribution:
    """A distribution over tokens: weights divided by their sum, which is all that a single probability needs."""

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._without: dict[tuple[int, ...], Distribution] = {}

    @property
    def weights(self) -> Tensor:
        return self._weights

    @cached_property
    def total(self) -> float:
        """What the weights are divided by: NaN or infinite if the weights are invalid."""
        return total(self.weights).item() or 1.0

    @cached_property
    def probs(self) -> Tensor:
        return self.weights.to(torch.float64, copy=True).div_(self.total)

    def __getitem__(self, token_id: int) -> float:
        return self.weights[token_id].item() / self.total

    def without(self, token_ids: list[int]) -> Distribution:
        """Return the distribution of a token that is drawn beside others which are proposed in any case."""
        if not token_ids:
            return self
        key = tuple(token_ids)
        if key not in self._without:
            weights = self.weights.clone()
            weights[token_ids] = 0.0
            self._without[key] = Distribution(weights)
        return self._without[key]


class OneHotDistribution(Distribution):
    def __init__(self, token_id: int, vocabulary: int) -> None:
        self._token_id, self._vocabulary = token_id, vocabulary
        self._without = {}

    @property
    def weights(self) -> Tensor:
        return self.probs

    @cached_property
    def probs(self) -> Tensor:
        return functional.one_hot(torch.tensor(self._token_id), self._vocabulary).double()

    def __getitem__(self, token_id: int) -> float:
        return float(token_id == self._token_id)


class Position:
    """A token of a proposal, or the text itself, that has children: some *fixed* ones, then some that are drawn.

    Everything is computed when it is first asked for: the target's rows may be known in part (``lazy``).
    """

    def __init__(self, rows: StepRows, node: int, lazy: LazyRows | None = None) -> None:
        proposal = rows.proposal
        self._rows, self._lazy, self.node = rows, lazy, node
        self.nodes = proposal.children[node]  # at least one; the fixed ones first, in the order of their tests
        self.token_ids = [proposal.token_ids[each] for each in self.nodes]
        self.num_fixed = sum(not proposal.drawn[each] for each in self.nodes)
        self.vocabulary = rows.logits.shape[-1]
        self.listed: SparseProbs | None = None  # tokens of the rows, before an entry for all others; None if all
        self._distributions: dict[int, Distribution] = {}
        self._relaxed: tuple[AcceptanceRule, Tensor | None] | None = None

    @property
    def drafted(self) -> int:
        """Index of the child that a rule judges: the first drawn one, else the first, whose probability is then 1."""
        return self.num_fixed if self.num_fixed < len(self.nodes) else 0

    @property
    def is_drawn(self) -> bool:
        return self.num_fixed < len(self.nodes)

    @property
    def is_plain(self) -> bool:
        """Whether its one child is all that the draft says: drawn from the draft's row, or its only proposal."""
        return len(self.nodes) == 1 and (self.is_drawn or self.draft_row is None)

    @property
    def remaining(self) -> int:
        """How many proposals may still be kept, this one included: on a chain of K, K - i after i of them."""
        return self._rows.proposal.depth - len(self._rows.proposal.tokens_to(self.node))

    @property
    def greatest_logit(self) -> float:
        return self._rows.logits[self.node + 1].max().item()

    @property
    def fixed_token_ids(self) -> Tensor:
        return torch.tensor(self.token_ids[: self.num_fixed], dtype=torch.long)

    @cached_property
    def row(self) -> SparseProbs:
        """The target's row that tokens are sampled from, in its own precision."""
        return target_row(self._rows, self.node, self._lazy)

    @cached_property
    def target(self) -> Distribution:
        """The same as a distribution; `ValueError` for NaN."""
        return self._checked(Distribution(self.row.dense()), "target")

    @cached_property
    def untempered(self) -> Tensor:
        """The target's row before temperature and truncation, in its own precision, ``[vocabulary]``."""
        return self._rows.untempered_after(self.node).cpu()

    @cached_property
    def draft_row(self) -> Tensor | None:
        row = self._rows.proposal.row_after(self.node)
        return None if row is None else row.cpu()

    @cached_property
    def draft(self) -> Distribution | None:
        """The same as a distribution; `ValueError` for NaN."""
        return None if self.draft_row is None else self._checked(Distribution(self.draft_row), "draft")

    def distribution(self, index: int) -> Distribution:
        """Return the distribution of a child given the text and the children drawn before it."""
        if index not in self._distributions:
            if index < self.num_fixed:
                self._distributions[index] = OneHotDistribution(self.token_ids[index], self.vocabulary)
            else:
                assert self.draft is not None
                self._distributions[index] = self.draft.without(self.token_ids[:index])
        return self._distributions[index]

    def child_with(self, token_id: int, *, other_than: int) -> int | None:
        """Return the child with a token; None if there is none, or it is ``other_than``."""
        child = self.nodes[self.token_ids.index(token_id)] if token_id in self.token_ids else other_than
        return None if child == other_than else child

    def relaxed_target(self, rule: AcceptanceRule) -> Tensor | None:
        """Return a rule's h, ``[vocabulary]`` in float64; None where it depends on the drafted child."""
        if isinstance(rule, Lossless):
            return self.target.probs
        if self._relaxed is None or self._relaxed[0] is not rule:
            giving, row = row_rule(rule), None
            if giving is not None:
                whole = None if self.draft is None else self.draft.probs
                drafted = self.distribution(self.drafted).probs
                row = giving.relaxed_target_beside(self.target.probs, whole, drafted, self.fixed_token_ids)
            self._relaxed = rule, row
        return self._relaxed[1]

    def relaxed_row(self, rule: AcceptanceRule) -> Tensor:
        """Return a rule's h; raise `ValueError` where it depends on the drafted child."""
        relaxed = self.relaxed_target(rule)
        if relaxed is None:
            raise ValueError(NEEDS_RELAXED_TARGET.format(how="this verification", rule=rule))
        return relaxed

    def judge(self, rule: AcceptanceRule, given: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return what a rule says here of some tokens, ``[tokens]``, if they were the drafted child.

        ``given`` is the distribution that it was drawn from; None where it was not drawn.
        """
        if isinstance(rule, GreedyRule):
            return rule.judge(self.untempered, given, token_ids)._replace(recovery=None)
        relaxed = self.relaxed_target(rule)
        if relaxed is None:
            return rule.judge(self.target.probs, given, token_ids)
        relaxed_prob = relaxed[token_ids].double()
        return Verdict(relaxed_prob, torch.ones_like(relaxed_prob), relaxed)

    def audit(self, rule: AcceptanceRule) -> Audit:
        """Return exactly what a rule emits here, by `match`; the acceptance is its drafted child's."""
        from cactus_decoding.core.audit import audit_rows, audit_verdicts

        target, draft = self.target.probs, self.distribution(self.drafted).probs
        if not isinstance(rule, GreedyRule) and self.relaxed_target(rule) is None:
            return audit_rows(rule, target, draft)
        return audit_verdicts(lambda token_ids: self.judge(rule, draft, token_ids), target, draft)

    def on_support(self, rule: AcceptanceRule) -> Position:
        """Return the position without what the target excludes, where a rule needs no more and that saves work."""
        if isinstance(rule, GreedyRule) or not getattr(rule, "support_only", False) or self.row.token_ids is None:
            return self
        return self._on_support

    @cached_property
    def _on_support(self) -> Position:
        return _OnSupport(self)

    def cost(self, rule: AcceptanceRule) -> float:
        """Return KL(emitted || target) here in nats; for temperature 0, the log-probability that a rule gives up.

        At temperature 0 it is 0 exactly where the rule keeps nothing that the lossless test rejects.
        """
        if isinstance(rule, Lossless):
            return 0.0
        if (position := self.on_support(rule)) is not self:
            return position.cost(rule)
        if isinstance(rule, GreedyRule):
            from cactus_decoding.core.rules.relaxed_greedy import given_up

            token_id = self.token_ids[self.drafted]
            if self.row.probability(token_id) > 0:  # the lossless test keeps it too
                return 0.0
            token = torch.tensor([token_id])
            # never 0, as a token that costs nothing counts as not relaxed
            kept = rule.accepts(self.untempered, token).item()
            return max(given_up(self.untempered, token).item(), sys.float_info.min) if kept else 0.0
        relaxed = self.relaxed_target(rule)
        return (self.audit(rule).kl if relaxed is None else kl_of_rows(relaxed, self.target.probs)).item()

    def mass(self, token_ids: Tensor, *, untempered: bool = False) -> float:
        """Return the probability that the target gives some tokens together, also before temperature and truncation.

        ``token_ids``, int64, ``[tokens]``, ascend; there is at least one.
        """
        row = SparseProbs(len(self.untempered), self.untempered) if untempered else self.row
        return row.mass(token_ids)

    def _checked(self, distribution: Distribution, role: str) -> Distribution:
        if not math.isfinite(distribution.total):
            length = len(self._rows.text(self.node))
            raise ValueError(f"the {role}'s logits after {length} tokens give no probabilities (NaN or infinite)")
        return distribution


class _OnSupport(Position):
    """A position whose tokens are those that the target may emit, and the proposed ones.

    A last token stands for all that is left out: the target gives it 0, the draft the sum of what it gives them. Rules
    that need the support only give it the same numbers as each of them.
    """

    def __init__(self, whole: Position) -> None:
        row, places = whole.row.including(whole.token_ids)
        self._rows, self._lazy, self.node = whole._rows, None, whole.node
        self.nodes, self.num_fixed = whole.nodes, whole.num_fixed
        self.token_ids = places
        self.listed, self.vocabulary = row, len(row.probs) + 1
        self._distributions, self._relaxed = {}, None
        self.row = SparseProbs(self.vocabulary, torch.cat([row.probs, row.probs.new_zeros(1)]))
        self.draft_row = None
        if whole.draft_row is not None:
            kept = row.restrict(whole.draft_row).double()
            rest = whole.draft_row.sum(dtype=torch.float64) - kept.sum()
            self.draft_row = torch.cat([kept, rest.clamp(min=0)[None]])


def target_row(rows: StepRows, node: int, lazy: LazyRows | None) -> SparseProbs:
    """Return the target's row after a proposal, or with -1 after the text, on the CPU."""
    if lazy is not None:
        return lazy.at(node + 1)
    row = rows.target_after(node).cpu()
    return SparseProbs(len(row), row)
