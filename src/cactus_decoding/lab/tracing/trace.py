"""What a trace holds: positions, the steps they were made in, and the whole response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.request import Request
from cactus_decoding.core.types import Fate
from cactus_decoding.lab.tracing.what_if import PositionRows


@dataclass(frozen=True)
class TracedToken:
    """One of the tokens that were likely at a position, in the eyes of one model or the other.

    Attributes:
        token_id: the token.
        token: its text, special tokens by their name.
        untempered: the target's probability before temperature and truncation.
        target: q, the target's probability as it is sampled from.
        draft: p, the draft's; None where nothing was drafted.
        relaxed: h given the drafted token; None where nothing was drafted.
        emitted: probability that this token is emitted here, averaged over what the draft may propose.
    """

    token_id: int
    token: str
    untempered: float
    target: float
    draft: float | None
    relaxed: float | None
    emitted: float


@dataclass(frozen=True)
class TracedPosition:
    """A token of the response, and what the models and the rule thought where it was chosen.

    At a bonus token nothing was drafted, and the target's own row is what is emitted: the fields of the drafted token
    are None there, and nothing is spent.

    Attributes:
        place: where it stands in the response, from 0.
        step: the step that made it, from 0.
        emitted: whether it is part of the response; false for what a step verified behind the token that ended it.
        token_id: the token.
        token: its text by itself, special tokens by their name.
        text: what it adds to the response's text; a character of several tokens belongs to the last of them.
        fate: accepted, relaxed, recovered or bonus; in a tree also matched.
        rule: spelling of the rule that decided here: that of this moment where a budget moves its width, and
            ``lossless`` where the budget could not afford it.
        drafted_id: the drafted token n: the token itself where it was accepted, another where it was recovered.
        drafted: its text.
        draft_prob: p(n).
        relaxed_prob: h(n), the first of the rule's two numbers.
        residual_scale: s, the second one; may be infinite.
        acceptance_prob: probability that n, once drafted, was accepted; with block verification, that it was kept
            together with all the proposals before it in its step. None where a step branches, but with `match`.
        acceptance: the same before n was drawn, averaged over the draft's row, in a tree that a child is kept; None
            where proposals are judged together.
        conditional_nats: KL(h || q) given n; None where h is no distribution.
        emitted_nats: KL(emitted || q), averaged over the draft: what a budget is charged. For ``relaxed_greedy`` both
            are the log-probability given up.
        tv: total variation between the emitted law and q, in [0, 1].
        max_log_ratio: log of the largest emitted(x) / q(x), in nats.
        fell_back: whether the budget could not afford the rule here, so that the lossless rule decided.
        protected: whether the request's policy kept the rule away here, so that the lossless rule decided.
        budget_left: nats that are left behind this position; None without a budget.
        candidates: the likeliest tokens under either model, the drafted and the emitted one among them; the likeliest
            under the target first.
        rows: both models' rows, where they are kept.
    """

    place: int
    step: int
    emitted: bool
    token_id: int
    token: str
    text: str
    fate: Fate
    rule: str
    drafted_id: int | None = None
    drafted: str | None = None
    draft_prob: float | None = None
    relaxed_prob: float | None = None
    residual_scale: float | None = None
    acceptance_prob: float | None = None
    acceptance: float | None = None
    conditional_nats: float | None = None
    emitted_nats: float = 0.0
    tv: float = 0.0
    max_log_ratio: float = 0.0
    fell_back: bool = False
    protected: bool = False
    budget_left: float | None = None
    candidates: tuple[TracedToken, ...] = ()
    rows: PositionRows | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class TracedNode:
    """One of a tree's proposals.

    Attributes:
        token_id: the token.
        token: its text.
        parent: the place in the tree of the token that it follows, -1 for the text.
        drawn: whether it was drawn; else it is *fixed*, a function of the text before it alone.
        draft_prob: the draft's probability of it behind its parent; None where the draft has no rows.
        fate: ``accepted``, ``relaxed`` or ``matched`` for those that were kept, ``rejected`` for those that were
            judged and not kept; None for the others.
        rule: of those with a fate, the spelling of the rule that decided behind their parent.
        nats: of the same, what that cost there.
    """

    token_id: int
    token: str
    parent: int
    drawn: bool
    draft_prob: float | None = None
    fate: str | None = None
    rule: str | None = None
    nats: float | None = None


@dataclass(frozen=True)
class TracedStep:
    """Drafting and verifying once.

    Attributes:
        step: from 0.
        num_drafted: tokens proposed, in a tree all its nodes.
        num_accepted: proposals that the rule kept, before any cut.
        seconds: wall time of the step.
        target_seconds: of it, the target's forward pass. On a GPU the pass is only begun in this time.
        verify_seconds: of it, the decision on the proposals. What is left is drafting.
        positions: the accepted tokens and the recovered or bonus token, also those that the end of the response cuts.
        metered: visited positions whose cost a budget measured.
        finish_reason: ``stop`` or ``length`` on the last step, else None.
        tree: the proposals, parents before their children, where they were a tree; none for a chain.
    """

    step: int
    num_drafted: int
    num_accepted: int
    seconds: float
    target_seconds: float
    verify_seconds: float
    positions: tuple[TracedPosition, ...]
    metered: int = 0
    finish_reason: str | None = None
    tree: tuple[TracedNode, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        """The tokens that the step added to the response."""
        return [position.token_id for position in self.positions if position.emitted]

    @property
    def fates(self) -> list[Fate]:
        """How each of them came about."""
        return [position.fate for position in self.positions if position.emitted]

    def metrics(self) -> Metrics:
        """Return this step's counts."""
        return Metrics(
            steps=1,
            drafted=self.num_drafted,
            accepted=self.num_accepted,
            relaxed=sum(position.fate == Fate.RELAXED for position in self.positions),
            recovered=int(self.positions[-1].fate == Fate.RECOVERED),
            bonus=int(self.positions[-1].fate == Fate.BONUS),
            generated=sum(position.emitted for position in self.positions),
            metered=self.metered,
            nats=sum(position.emitted_nats for position in self.positions) if self.metered else 0.0,
            fell_back=sum(position.fell_back for position in self.positions),
            protected=sum(position.protected for position in self.positions),
            seconds=self.seconds,
        )


@dataclass(frozen=True)
class TraceHeader:
    """What was asked for.

    Attributes:
        prompt: the text that was continued.
        target: name of the verifying model.
        draft: name of the proposing model.
        request: rule, budget, sampling and all the rest, the seed among it.
        vocabulary: how many tokens there are.
        provenance: commit, versions, machine, date.
    """

    prompt: str
    target: str
    draft: str
    request: Request
    vocabulary: int
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as one flat object, for JSON."""
        names = {"prompt": self.prompt, "target": self.target, "draft": self.draft}
        end = {"vocabulary": self.vocabulary, "provenance": dict(self.provenance)}
        return names | self.request.as_dict() | end


@dataclass(frozen=True)
class Trace:
    """A response with all that was seen while it was made.

    Attributes:
        header: what was asked for.
        steps: in order.
        text: the response, cut before a stop string.
        finish_reason: ``stop`` or ``length``; None for a response that was interrupted.
        metrics: counts and seconds.
    """

    header: TraceHeader
    steps: tuple[TracedStep, ...]
    text: str
    finish_reason: str | None
    metrics: Metrics

    @property
    def positions(self) -> tuple[TracedPosition, ...]:
        """All positions in order, also those behind the end of the response."""
        return tuple(position for step in self.steps for position in step.positions)

    @property
    def token_ids(self) -> list[int]:
        """The response's tokens."""
        return [position.token_id for position in self.positions if position.emitted]
