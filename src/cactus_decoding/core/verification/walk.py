"""One step of one response: a policy decides at each position that is visited, a scheme goes from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cactus_decoding.core.policy.decide import Policy, PolicyState
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.sampling.noise import SharedNoise, SharedNumbers
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.schemes import read_scheme
from cactus_decoding.core.types import ROOT, AcceptanceRule, Decision, LogitsToProbs, Outcome, Proposal, StepRows
from cactus_decoding.core.verification.coupled import coupled
from cactus_decoding.core.verification.match import match
from cactus_decoding.core.verification.tree import RandomNumbers, Scheme, Tree, with_relaxed

if TYPE_CHECKING:
    from cactus_decoding.core.policy.budget import Budget
    from cactus_decoding.core.policy.position import Position
    from cactus_decoding.core.policy.relaxation import FittedPolicy


def walk(
    scheme: Scheme,
    policy: Policy,
    state: PolicyState,
    rows: StepRows,
    numbers: RandomNumbers | SharedNumbers,
    sampling: SamplingParams | None = None,
) -> tuple[PolicyState, Outcome]:
    judge = NodeJudge(policy, state, rows.proposal)
    tree = Tree(rows, sampling, lazy=scheme is match and not policy.metered)
    at_once = scheme is match and rows.logits.device.type != "cpu" and policy.unconditional
    if at_once and isinstance(numbers, RandomNumbers) and rows.proposal.is_plain_chain:
        from cactus_decoding.core.verification.batched import verified_at_once

        walked = verified_at_once(Decision(state.rule), rows, numbers)
    else:
        unused = numbers.again()
        walked = scheme(tree, judge, numbers)
        # `match` and `coupled` mark relaxed tokens themselves, and so does `fly`, which takes the lossless rule alone
        if scheme not in (match, coupled) and not isinstance(state.rule, Lossless):
            walked = with_relaxed(walked, scheme, tree, judge, unused)
    outcome = Outcome(rows.proposal, walked.path, walked.next_token, walked.visits, rows, len(walked.path) + 1)
    decisions = [visit.decision for visit in walked.visits]
    return policy.end_step(state, decisions, outcome.all_token_ids), outcome


class NodeJudge:
    """Asks a policy about positions, each once, in the state that the tokens before it lead to."""

    def __init__(self, policy: Policy, state: PolicyState, nodes: Proposal) -> None:
        self._policy, self._nodes = policy, nodes
        self._states = {ROOT: state}
        self.decisions: dict[int, Decision] = {}

    def __call__(self, position: Position) -> Decision:
        node = position.node
        if node not in self.decisions:
            self.decisions[node] = self._policy.decide(self._state(node), position)
        return self.decisions[node]

    def _state(self, node: int) -> PolicyState:
        """Return the state after a token; the tokens that lead to it have been decided on before."""
        if node not in self._states:
            parent = self._nodes.parents[node]
            token_id = self._nodes.token_ids[node]
            self._states[node] = self._policy.after(self._state(parent), self.decisions[parent], token_id)
        return self._states[node]


@dataclass(frozen=True, eq=False)
class Verifier:
    rule: AcceptanceRule
    to_probs: LogitsToProbs
    to_untempered: LogitsToProbs  # the same before temperature and truncation
    sampling: SamplingParams | None = None  # given if ``to_probs`` does nothing else: rows may then stay logits
    budget: Budget | None = None
    verification: str = "token"  # the spelling of one of `VERIFICATIONS`
    fitted: FittedPolicy | None = None  # None if the rule may relax everywhere
    greedy: bool = False  # whether the temperature is 0

    @cached_property
    def policy(self) -> Policy:
        return Policy(self.rule, self.budget, self.fitted)

    @cached_property
    def scheme(self) -> Scheme:
        declared, knobs = read_scheme(self.verification)
        verify = declared.function
        return partial(verify, knobs=knobs, greedy=self.greedy) if declared.lossy else verify

    def begin(self, prompt_ids: Sequence[int] = ()) -> PolicyState:
        return self.policy.begin(prompt_ids)

    def __call__(
        self,
        state: PolicyState,
        logits: Tensor,
        token_ids: list[int],
        proposal: Proposal,
        generator: torch.Generator | None,
    ) -> tuple[PolicyState, Outcome]:
        """Decide on a proposal.

        ``logits`` are the target's, ``[len(proposal.token_ids) + 1, vocabulary]``; ``token_ids`` are all tokens of the
        text, the proposal at their end.
        """
        rows = StepRows(logits, token_ids, proposal, self.to_probs, self.to_untempered)
        numbers: RandomNumbers | SharedNumbers
        if self.scheme is coupled:
            noise = SharedNoise.of(generator, logits.device)
            numbers = SharedNumbers(noise, len(token_ids) - len(proposal.token_ids))
        else:
            numbers = RandomNumbers.draw(proposal, generator, logits.device)
        return walk(self.scheme, self.policy, state, rows, numbers, self.sampling)
