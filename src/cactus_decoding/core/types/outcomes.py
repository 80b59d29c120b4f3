"""What a rule says about a drafted token, and what a step decided by it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from cactus_decoding.core.types.proposals import Proposal, StepRows

if TYPE_CHECKING:
    from torch import Tensor


class Verdict(NamedTuple):
    """The two numbers by which a rule decides on a drafted token.

    Attributes:
        relaxed_prob: h(n), the relaxed target's probability of the drafted token n, ``[..., tokens]``. With u uniform
            in [0, 1), n is accepted when ``u * draft_prob(n) < h(n)``.
        residual_scale: s, ``[..., tokens]``, from 0 to infinity. After a rejection the token is drawn in proportion to
            the positive part of ``s * recovery_target - draft_probs``; infinity means the recovery target itself.
    """

    relaxed_prob: Tensor
    residual_scale: Tensor


@runtime_checkable
class AcceptanceRule(Protocol):
    """A rule that accepts or rejects drafted tokens: pure, deterministic, picklable."""

    def __str__(self) -> str:
        """Return the text that `parse_rule` turns into this rule, such as ``cactus:delta=1.0``."""

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the two numbers for each of some tokens at each position, if it were the drafted one.

        Args:
            target_probs: the target's probabilities, ``[..., vocabulary]``.
            draft_probs: the draft's probabilities, ``[..., vocabulary]``, or None where the draft is deterministic.
            token_ids: the tokens asked about, ``[..., tokens]``: one for `verify`, all of them for `audit`.

        Returns:
            Numbers in float64, ``[..., tokens]``.
        """

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Return what recovery starts from, ``[..., vocabulary]``: the target's own probabilities, for most rules."""

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor | None:
        """Return h, ``[..., vocabulary]``, if it does not depend on the drafted token, else None.

        What is emitted is then distributed as h.
        """


class Verification(NamedTuple):
    """What `verify` decided for a batch of sequences.

    Attributes:
        num_accepted: accepted tokens of each sequence, ``[batch]``.
        next_token: the recovered token, or the bonus token where all were accepted, ``[batch]``.
        relaxed: true for accepted tokens that the lossless test would have rejected, ``[batch, num_draft_tokens]``.
    """

    num_accepted: Tensor
    next_token: Tensor
    relaxed: Tensor


def judges_untempered(rule: AcceptanceRule) -> bool:
    """Whether a rule judges the probabilities before temperature, as those for temperature 0 do."""
    return getattr(rule, "judges_untempered", False)


class Visit(NamedTuple):
    """One visited position of a step: a proposal that was judged.

    Attributes:
        node: which token of the proposal.
        token_id: the drafted token.
        rule: what judged it: the lossless rule where a budget could not afford the request's or a policy did not let
            it; else the request's, narrowed where a budget paces it or importance scales it.
        accepted: whether it was kept.
        relaxed: whether it was kept though the lossless test would have rejected it.
        nats: what the position cost; None where nobody measured.
        fell_back: whether the budget could not afford the rule here.
        protected: whether the request's policy did not let the rule judge here.
        rows: probabilities of both models in this step.
        matched: another node of the proposal that is the recovered token, after which the step goes on.
    """

    node: int
    token_id: int
    rule: AcceptanceRule
    accepted: bool
    relaxed: bool
    nats: float | None
    fell_back: bool
    protected: bool
    rows: StepRows
    matched: int | None = None

    @property
    def target_probs(self) -> Tensor:
        """The target's probabilities as they are sampled from, ``[vocabulary]``."""
        return self.rows.target_of(self.node)

    @property
    def draft_probs(self) -> Tensor | None:
        """The probabilities that the token was drawn from, ``[vocabulary]``; None where the draft is deterministic."""
        return self.rows.draft(self.node)

    @property
    def verdict(self) -> Verdict:
        """The rule's two numbers about a drafted token that has no siblings, ``[1]`` each."""
        import torch

        judged = self.rows.untempered_of(self.node) if judges_untempered(self.rule) else self.target_probs
        return self.rule.judge(judged, self.draft_probs, torch.tensor([self.token_id], device=judged.device))


class Fate(StrEnum):
    """How an emitted token came about."""

    ACCEPTED = "accepted"
    RELAXED = "relaxed"
    RECOVERED = "recovered"
    BONUS = "bonus"
    MATCHED = "matched"
    """Recovered, and one of the proposals too: the step goes on after it."""


class Choice(NamedTuple):
    """One of several answers that a response may be.

    Attributes:
        text: the answer.
        logprob: log of the probability that the target writes exactly this and ends, at temperature 1 without cuts.
        probability: its share among the choices.
    """

    text: str
    logprob: float
    probability: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, which has no minus infinity."""
        return {"choice": self.text, "probability": self.probability, "logprob": max(self.logprob, -9999.0)}


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one step of drafting and verifying decided, and all that it was decided from.

    Metrics, traces, audits and recorded rows are read from it. It holds the step's probabilities, so keep what is
    needed of them rather than the outcome.

    Attributes:
        proposal: what the drafter proposed.
        path: the nodes that were kept, in order.
        next_token: the recovered token, or the bonus token where nothing was proposed after the last that was kept.
        visits: the positions of those that were kept and the one where none was, in order.
        rows: probabilities of both models.
        num_emitted: tokens handed on: all of them, unless one ended the response.
        finish_reason: ``stop`` or ``length`` on the last step, else None.
        draft_seconds: wall time of drafting.
        target_seconds: of the target's forward pass; a GPU may finish it later.
        verify_seconds: of the decision.
        choices: how likely each answer was, where the response is one of several.
    """

    proposal: Proposal
    path: list[int]
    next_token: int
    visits: list[Visit]
    rows: StepRows
    num_emitted: int
    finish_reason: str | None = None
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    verify_seconds: float = 0.0
    choices: tuple[Choice, ...] = ()

    @property
    def num_drafted(self) -> int:
        return len(self.proposal.token_ids)

    @property
    def num_accepted(self) -> int:
        """Proposals kept, those that a recovered token matched among them, before any cut by the response's end."""
        return len(self.path)

    @property
    def num_forced(self) -> int:
        """Those among them that a constraint left no choice about."""
        return len(self.proposal.forced.intersection(self.path))

    @property
    def num_relaxed(self) -> int:
        """Accepted tokens that the lossless test would have rejected."""
        return sum(visit.relaxed for visit in self.visits)

    @property
    def num_fell_back(self) -> int:
        return sum(visit.fell_back for visit in self.visits)

    @property
    def num_protected(self) -> int:
        return sum(visit.protected for visit in self.visits)

    @property
    def nats(self) -> list[float]:
        """Cost of each visited position; empty where nobody measured."""
        return [visit.nats for visit in self.visits if visit.nats is not None]

    @property
    def all_token_ids(self) -> list[int]:
        """The accepted tokens and the next one, also those after a token that ends the response."""
        return [*(self.proposal.token_ids[node] for node in self.path), self.next_token]

    @property
    def all_fates(self) -> list[Fate]:
        """How each of `all_token_ids` came about."""
        kept = [visit for visit in self.visits if visit.accepted or visit.matched is not None]
        fates = [Fate.RELAXED if each.relaxed else Fate.ACCEPTED if each.accepted else Fate.MATCHED for each in kept]
        return [*fates, Fate.RECOVERED if self.num_accepted < len(self.visits) else Fate.BONUS]

    @property
    def token_ids(self) -> list[int]:
        """The tokens that were handed on."""
        return self.all_token_ids[: self.num_emitted]

    @property
    def fates(self) -> list[Fate]:
        """How each of `token_ids` came about."""
        return self.all_fates[: self.num_emitted]
