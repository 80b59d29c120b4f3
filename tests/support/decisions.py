"""What the package's policy decides about the positions of a chain, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.policy.budget import Budget
from cactus_decoding.core.policy.decide import Policy, PolicyState, affords
from cactus_decoding.core.policy.phases import PhaseState
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.sampling.params import SamplingFn, SamplingParams
from cactus_decoding.core.types import AcceptanceRule, Decision, DecisionReason, Proposal, StepRows, Verdict


def as_given(rows: Tensor, token_ids: list[int]) -> Tensor:
    return rows


def chain_rows(target: Tensor, draft: Tensor | None, drafted: Sequence[int]) -> StepRows:
    """Return the rows of a step that proposes a chain, from its probabilities; behind it the last row again."""
    rows = torch.cat([target, target[-1:]]) if len(target) == len(drafted) else target
    return StepRows(rows, list(drafted), Proposal(list(drafted), draft), as_given, as_given)


def greedy_rows(logits: Tensor, drafted: Sequence[int]) -> StepRows:
    """Return the rows of a step at temperature 0 that proposes a chain, from its logits; behind it the last again."""
    proposal, sampling = Proposal(list(drafted), None), SamplingFn(SamplingParams(temperature=0.0))
    return StepRows(torch.cat([logits, logits[-1:]]), list(drafted), proposal, sampling, sampling.untempered)


def protected_mass(rows: Tensor, token_ids: Tensor) -> Tensor:
    """Return what rows ``[..., vocabulary]`` give some tokens together, ``[...]`` in float64."""
    return rows.index_select(-1, token_ids).double().sum(-1)


class Allowed:
    """A policy that says beforehand where a rule may judge."""

    def __init__(self, where: Tensor) -> None:
        self._where = where.tolist()

    def relaxes(self, rule: AcceptanceRule, state: PhaseState, position: Position) -> bool:
        return self._where[position.node + 1]

    def begin(self, prompt_ids: Sequence[int]) -> PhaseState:
        return PhaseState()

    def after(self, state: PhaseState, token_ids: Sequence[int]) -> PhaseState:
        return state


class JudgedHere:
    """Asks each position's own judge: the rule that emits, for rows that are enumerated all at once.

    Each position may be asked about several tokens, in rows that follow each other.
    """

    def __init__(self, positions: Sequence[Position], decisions: Sequence[Decision]) -> None:
        self.rules = [each.rule for each in decisions]
        self._positions = positions

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        verdicts = []
        for i, row in enumerate(target_probs):
            at = i * len(self.rules) // len(target_probs)
            given = None if draft_probs is None else draft_probs[i]
            verdict = self._positions[at].judge(self.rules[at], given, token_ids[i])
            verdicts.append(verdict._replace(recovery=verdict.recovers_from(row).double()))
        return Verdict(*(torch.stack(each) for each in zip(*verdicts, strict=True)))


class Plan(NamedTuple):
    """What was decided about each position, had those before it been kept."""

    rule: JudgedHere
    costs: list[float]
    fell_back: list[bool]
    protected: list[bool]
    decisions: list[Decision]

    @property
    def lossless(self) -> bool:
        return all(isinstance(rule, Lossless) for rule in self.rule.rules)


def plan(
    rule: AcceptanceRule,
    target: Tensor,
    draft: Tensor | None,
    drafted: Tensor,
    *,
    limit: float | None = None,
    spent: float = 0.0,
    relaxable: Tensor | None = None,
    fitted=None,
    text: Sequence[int] = (),
) -> Plan:
    """Ask about the positions of a chain behind a response's text; without a limit nobody measures.

    For a rule for temperature 0 the target's rows are logits.
    """
    fitted = Allowed(relaxable) if relaxable is not None else fitted
    policy = Policy(rule, None if limit is None else Budget(nats=limit), fitted)
    state = policy.begin()._replace(spent=spent)
    if fitted is not None:
        state = state._replace(phase=fitted.after(state.phase, text))
    tokens = drafted.tolist()
    rows = greedy_rows(target, tokens) if isinstance(rule, GreedyRule) else chain_rows(target, draft, tokens)
    positions, decisions = [Position(rows, node - 1) for node in range(len(tokens))], list[Decision]()
    for position, token in zip(positions, tokens, strict=True):
        decisions.append(policy.decide(state, position))
        state = policy.after(state, decisions[-1], token)
    whys = [each.why for each in decisions]
    return Plan(
        JudgedHere(positions, decisions),
        [each.cost or 0.0 for each in decisions],
        [why is DecisionReason.FELL_BACK for why in whys],
        [why is DecisionReason.PROTECTED for why in whys],
        decisions,
    )


def emitted_by(rule: AcceptanceRule, target: Tensor, draft: Tensor) -> Tensor:
    """Enumerate every drafted token at every row of a plan, whose rule holds what it decided for all rows."""
    emitted = torch.zeros_like(draft)
    for token in range(draft.shape[-1]):
        verdict = rule.judge(target, draft, torch.full((len(draft), 1), token))
        relaxed, scale = verdict.relaxed_prob[:, 0], verdict.residual_scale[:, 0]
        start = verdict.recovers_from(target).double()
        p = draft[:, token]
        kept = torch.where(p > 0, relaxed / p, 1.0).clamp(max=1)
        weights = torch.where(scale.isinf()[:, None], start, (scale[:, None] * start - draft).clamp(min=0))
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, start)
        emitted += (p * (1 - kept))[:, None] * weights / weights.sum(-1, keepdim=True)
        emitted[:, token] += p * kept
    return emitted


def afforded_in_turn(costs: Sequence[float], limit: float, spent: float = 0.0) -> list[bool]:
    """Say which of some positions, one after another, can be afforded."""
    admitted = []
    for cost in costs:
        admitted.append(affords(PolicyState(Lossless(), limit, spent), cost))
        spent += cost if admitted[-1] else 0.0
    return admitted
