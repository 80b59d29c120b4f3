"""Looks on while a verifier decides, and works out exactly what each visited position cost."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from cactus_decoding.auditing import audit
from cactus_decoding.budgets.pacing import Paced
from cactus_decoding.rules import ClampedRatio, Lossless, RelaxedGreedy
from cactus_decoding.types import AcceptanceRule, Decision, LogitsToProbs, Proposal, Verifier


class AuditingVerifier:
    """A verifier that decides as another one does, and audits the positions that were visited.

    Those are the accepted positions and the one of the first rejection: whatever lies behind was never emitted, and a
    bonus token comes from the target itself. Where a budget fell back to the lossless rule, a position costs nothing.
    The nats of `relaxed_greedy` are the log-probability given up.

    Args:
        inner: what decides.
        rule: the acceptance rule.
        to_probs: the request's sampling.
        pace: the budget in nats and the tokens over which it is spread, where the width is moved.

    Attributes:
        positions: audited positions so far.
        nats: sum of KL(output || target) over them.
        tv: sum of their total variations.
        max_log_ratio: the largest log-likelihood ratio among them, in nats; 0 before any.
        seconds: what the audit itself has taken.
    """

    def __init__(
        self,
        inner: Verifier,
        rule: AcceptanceRule,
        to_probs: LogitsToProbs,
        pace: tuple[float, int] | None = None,
    ) -> None:
        """Begin a response."""
        self._inner, self._rule, self._to_probs = inner, rule, to_probs
        self._paced, self._left = None, math.inf
        if pace is not None and isinstance(rule, ClampedRatio):
            self._paced, self._left = Paced(rule.width or 0.0, *pace), pace[0]
        self.positions, self.nats, self.tv, self.max_log_ratio, self.seconds = 0, 0.0, 0.0, 0.0, 0.0

    def __call__(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, generator: torch.Generator | None
    ) -> Decision:
        """Return the inner verifier's decision."""
        decision = self._inner(logits, token_ids, proposal, generator)
        start = time.perf_counter()
        visited = min(decision.num_accepted + 1, len(proposal.token_ids))
        self.positions += visited
        if visited and not isinstance(self._rule, Lossless):
            self._add(*self._costs(logits, token_ids, proposal, decision, visited))
        elif self._paced is not None:
            self._paced.observe([], decision.num_accepted + 1)
        self.seconds += time.perf_counter() - start
        return decision

    def _add(self, nats: list[float], tv: list[float], max_log_ratio: list[float]) -> None:
        for cost in nats:
            self.nats += cost
        self.tv += sum(tv)
        self.max_log_ratio = max(self.max_log_ratio, *max_log_ratio)

    def _costs(
        self, logits: Tensor, token_ids: list[int], proposal: Proposal, decision: Decision, visited: int
    ) -> tuple[list[float], list[float], list[float]]:
        """Return KL, TV and log-ratio of each visited position."""
        if isinstance(self._rule, RelaxedGreedy):  # at temperature 0 another token is another distribution altogether
            moved = [nats > 0 for nats in (decision.nats or ())]
            return list(decision.nats or ()), [float(m) for m in moved], [math.inf if m else 0.0 for m in moved]
        rule = self._rule if self._paced is None else self._paced.rule(self._left)
        # sampling goes row by row, so the rows behind the visited ones need no probabilities
        target_probs = self._to_probs(logits[:visited], token_ids[: len(token_ids) - len(proposal.token_ids) + visited])
        if proposal.probs is None:
            drafted = torch.tensor(proposal.token_ids[:visited], device=logits.device)
            result = audit(rule, target_probs, draft_token_ids=drafted)
        else:
            result = audit(rule, target_probs, proposal.probs[:visited])
        nats: list[float] = result.kl.clamp(min=0).tolist()  # rounding can take a KL of zero below zero
        tv: list[float] = result.tv.tolist()
        largest: list[float] = result.max_log_ratio.clamp(min=0).tolist()
        if self._paced is not None:
            self._paced.observe(nats, decision.num_accepted + 1)
        for place, over in enumerate(decision.fell_back[:visited]):
            if over:
                nats[place] = tv[place] = largest[place] = 0.0
        if decision.nats is None:
            return nats, tv, largest
        self._left -= sum(decision.nats)
        return list(decision.nats), tv, largest  # as they were charged, to the last bit
