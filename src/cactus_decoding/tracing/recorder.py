"""Looks on while a verifier decides, and records what the models and the rule thought at every position."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from cactus_decoding.budgets.budget import Budget, plan_step
from cactus_decoding.budgets.pacing import Greedy, Paced
from cactus_decoding.generation.loop import Fate
from cactus_decoding.rules import ClampedRatio, Lossless
from cactus_decoding.sampling.params import SamplingParams
from cactus_decoding.tracing.trace import Candidate, TracedPosition
from cactus_decoding.tracing.what_if import Consequences, KeptRow, KeptRows, what_if
from cactus_decoding.types import AcceptanceRule, Decision, Proposal, Verifier


class TracingVerifier:
    """A verifier that decides as another one does, and records the positions that were visited.

    Those are the accepted positions, the one of the first rejection, and the bonus token's. It draws no random numbers.

    Args:
        inner: what decides.
        rule: the acceptance rule.
        sampling: of the target.
        name: a token's text.
        budget: what the response may cost, if that is limited or measured.
        verification: ``token`` or ``block``.
        top_candidates: how many of the likeliest tokens are recorded, under the target and under the draft.
        keep_rows: whether positions keep both models' rows.

    Attributes:
        positions: of the last step; their texts and places are not yet known.
        seconds: what the last decision has taken.
        tracing_seconds: what recording it has taken.
    """

    def __init__(
        self,
        inner: Verifier,
        rule: AcceptanceRule,
        sampling: SamplingParams,
        name: Callable[[int], str],
        *,
        budget: Budget | None = None,
        verification: str = "token",
        top_candidates: int = 5,
        keep_rows: bool = False,
    ) -> None:
        """Begin a response."""
        self._inner, self._sampling, self._name = inner, sampling, name
        self._limit = None if budget is None else budget.limit
        self._spending: Greedy | Paced = Greedy(rule)
        if budget is not None and budget.expected_tokens is not None and isinstance(rule, ClampedRatio):
            self._spending = Paced(rule.width or 0.0, budget.limit, budget.expected_tokens)
        self._block, self._top, self._keep_rows = verification == "block", top_candidates, keep_rows
        self._spent = 0.0
        self.positions: list[TracedPosition] = []
        self.seconds, self.tracing_seconds, self.metered = 0.0, 0.0, 0

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Return the inner verifier's decision."""
        start = time.perf_counter()
        decision = self._inner(logits, token_ids, proposal, generator)
        decided = time.perf_counter()
        self.seconds, self.metered = decided - start, len(decision.nats or ())
        self.positions = []
        if decision.next_token < logits.shape[-1]:  # else the row holds NaN, of which the loop will complain
            self._record(logits, proposal, decision)
        self.tracing_seconds = time.perf_counter() - decided
        return decision

    def _record(self, logits: Tensor, proposal: Proposal, decision: Decision) -> None:
        rule = self._rule_of_this_step(logits, proposal, decision)
        emitted = [*proposal.token_ids[: decision.num_accepted], decision.next_token]
        target_rows = self._sampling(logits[: len(emitted)])
        weight = 1.0  # of the proposals so far, where they are judged jointly
        for place, token_id in enumerate(emitted):
            untempered = logits[place].double().softmax(-1).cpu()
            if place == len(proposal.token_ids):
                self.positions.append(self._bonus(token_id, target_rows[place], untempered))
                continue
            fell_back = place < len(decision.fell_back) and decision.fell_back[place]
            rows = KeptRows(
                drafted_id=proposal.token_ids[place],
                target=KeptRow.keep(target_rows[place]),
                draft=None if proposal.probs is None else KeptRow.keep(proposal.probs[place]),
                untempered=KeptRow.keep(untempered) if self._sampling.temperature == 0 else None,
            )
            seen = what_if(rows, Lossless() if fell_back else rule)
            nats = seen.emitted_nats if decision.nats is None else decision.nats[place]
            self._spent += nats
            position = self._drafted(token_id, rows, seen, untempered)
            if self._block:
                weight = min(weight * seen.relaxed[rows.drafted_id].item() / (position.draft_prob or 1.0), 1.0)
                position = replace(position, acceptance_prob=weight, acceptance=None)
            accepted = place < decision.num_accepted
            relaxed = accepted and decision.relaxed[place]
            self.positions.append(
                replace(
                    position,
                    fate=(Fate.RELAXED if relaxed else Fate.ACCEPTED) if accepted else Fate.RECOVERED,
                    emitted_nats=nats,  # as it was charged, to the last bit
                    fell_back=fell_back,
                    budget_left=self._left(),
                    rows=rows if self._keep_rows else None,
                )
            )

    def _rule_of_this_step(self, logits: Tensor, proposal: Proposal, decision: Decision) -> AcceptanceRule:
        """Return the rule that decided, moved as the budget moves it."""
        if not isinstance(self._spending, Paced) or self._limit is None:
            return self._spending.rule(0.0)
        rule = self._spending.rule(self._limit - self._spent)
        drafted = torch.tensor(proposal.token_ids, dtype=torch.long, device=logits.device)
        # all of the step's rows, as the verifier did it: the same bits, and so the same widths later on
        target_rows = self._sampling(logits)[:-1]
        plan = plan_step(rule, target_rows, proposal.probs, drafted, limit=self._limit, spent=self._spent)
        self._spending.observe(plan.costs[: len(decision.nats or ())], decision.num_accepted + 1)
        return rule

    def _left(self) -> float | None:
        return None if self._limit is None else max(self._limit - self._spent, 0.0)

    def _drafted(self, token_id: int, rows: KeptRows, seen: Consequences, untempered: Tensor) -> TracedPosition:
        """Describe a position at which there was a proposal."""
        target = rows.target.dense().double()
        draft = torch.zeros_like(target)
        if rows.draft is None:
            draft[rows.drafted_id] = 1.0
        else:
            draft = rows.draft.dense().double()
        return TracedPosition(
            place=0,
            step=0,
            emitted=True,
            token_id=token_id,
            token=self._name(token_id),
            text="",
            fate=Fate.ACCEPTED,
            rule=seen.rule,
            drafted_id=rows.drafted_id,
            drafted=self._name(rows.drafted_id),
            draft_prob=draft[rows.drafted_id].item(),
            relaxed_prob=seen.relaxed_prob,
            residual_scale=seen.residual_scale,
            acceptance_prob=seen.acceptance_prob,
            acceptance=seen.acceptance,
            conditional_nats=None if seen.conditional_nats != seen.conditional_nats else seen.conditional_nats,
            tv=seen.tv,
            max_log_ratio=max(seen.max_log_ratio, 0.0),
            candidates=self._candidates(
                [rows.drafted_id, token_id], untempered, target, seen.emitted, draft, seen.relaxed
            ),
        )

    def _bonus(self, token_id: int, target: Tensor, untempered: Tensor) -> TracedPosition:
        """Describe the position behind all proposals, where the target's own row is drawn from."""
        target = target.double().cpu()
        return TracedPosition(
            place=0,
            step=0,
            emitted=True,
            token_id=token_id,
            token=self._name(token_id),
            text="",
            fate=Fate.BONUS,
            rule=str(Lossless()),
            budget_left=self._left(),
            candidates=self._candidates([token_id], untempered, target, target, None, None),
        )

    def _candidates(
        self,
        always: list[int],
        untempered: Tensor,
        target: Tensor,
        emitted: Tensor,
        draft: Tensor | None,
        relaxed: Tensor | None,
    ) -> tuple[Candidate, ...]:
        """Describe the likeliest tokens, and those that always belong to them, the target's likeliest first."""
        chosen = dict.fromkeys(always)
        for row in (untempered, draft):
            if row is not None:
                most = row.topk(min(self._top, len(row)))
                pairs = zip(most.indices.tolist(), most.values.tolist(), strict=True)
                chosen |= dict.fromkeys(token_id for token_id, probability in pairs if probability > 0)
        in_order = sorted(chosen, key=lambda token_id: (-untempered[token_id].item(), token_id))
        return tuple(
            Candidate(
                token_id=token_id,
                token=self._name(token_id),
                untempered=untempered[token_id].item(),
                target=target[token_id].item(),
                draft=None if draft is None else draft[token_id].item(),
                relaxed=None if relaxed is None else relaxed[token_id].item(),
                emitted=emitted[token_id].item(),
            )
            for token_id in in_order
        )
