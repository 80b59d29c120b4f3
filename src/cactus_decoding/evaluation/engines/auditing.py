"""What an answer cost, exactly, read from the outcomes of its steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby

import torch

from cactus_decoding.auditing import Audit, audit
from cactus_decoding.rules import Lossless
from cactus_decoding.types import AcceptanceRule, Outcome, TreeRows, Visit, judges_untempered
from cactus_decoding.verification.trees.judging import audit_children
from cactus_decoding.verification.trees.tree import ProposedTree


@dataclass
class AuditedCosts:
    """Exact costs of the visited positions: the accepted ones and those of a first rejection.

    Whatever lies behind a rejection was never emitted, and a bonus token comes from the target itself. Where a budget
    fell back to the lossless rule, a position costs nothing. What a budget charged is taken as it was charged. The nats
    of `RelaxedGreedy` are the log-probability given up.

    Attributes:
        metered: positions so far.
        nats: sum of KL(output || target) over them.
        tv: sum of their total variations.
        max_log_ratio: the largest log-likelihood ratio among them, in nats; 0 before any.

    Example:
        >>> from cactus_decoding import load_pair, stream
        >>> from cactus_decoding.zoo.word_problems import EXAMPLES
        >>> costs = AuditedCosts()
        >>> for outcome in stream(load_pair(), EXAMPLES[0].prompt, rule="cactus:delta=1", seed=0):
        ...     costs.add(outcome)
        >>> 0 < costs.tv < costs.metered
        True
    """

    metered: int = 0
    nats: float = 0.0
    tv: float = 0.0
    max_log_ratio: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Add what a step's visited positions cost."""
        self.metered += len(outcome.visits)
        for rule, visits in groupby(outcome.visits, key=lambda visit: visit.rule):
            if not isinstance(rule, Lossless):
                self._add(rule, list(visits))

    def _add(self, rule: AcceptanceRule, visits: list[Visit]) -> None:
        """Add positions that one rule judged."""
        charged = [visit.nats for visit in visits if visit.nats is not None]
        if judges_untempered(rule):  # at temperature 0 another token is another distribution altogether
            nats, tv = charged, [float(cost > 0) for cost in charged]
            largest = [math.inf if moved else 0.0 for moved in tv]
        elif isinstance(visits[0].rows, TreeRows):
            tree = ProposedTree(visits[0].rows)
            results = [_audited(tree, rule, visit) for visit in visits]
            nats = charged or [max(each.kl.item(), 0.0) for each in results]
            tv = [each.tv.item() for each in results]
            largest = [max(each.max_log_ratio.item(), 0.0) for each in results]
        else:
            nodes, proposal = [visit.node for visit in visits], visits[0].rows.proposal
            target_probs = visits[0].rows.target(nodes[-1] + 1)[nodes]
            if proposal.probs is None:
                drafted = torch.tensor([visit.token_id for visit in visits], device=target_probs.device)
                result = audit(rule, target_probs, draft_token_ids=drafted)
            else:
                result = audit(rule, target_probs, proposal.probs[nodes])
            nats = charged or result.kl.clamp(min=0).tolist()  # rounding can take a KL of zero below zero
            tv, largest = result.tv.tolist(), result.max_log_ratio.clamp(min=0).tolist()
        for cost in nats:  # one by one, as they were charged: the same rounding
            self.nats += cost
        self.tv += sum(tv)
        self.max_log_ratio = max(self.max_log_ratio, *largest)


def _audited(tree: ProposedTree, rule: AcceptanceRule, visit: Visit) -> Audit:
    """Return what a rule emits at a position of a tree."""
    parent = tree.parent(visit.node)
    children = tree.children(parent)
    assert children is not None  # the visited one is among them
    return audit_children(rule, tree.target(parent).probs, children)
