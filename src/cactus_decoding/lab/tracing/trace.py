"""What a trace holds: positions, the steps they were made in, and the whole response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, PlainValidator

from cactus_decoding.core.files.jsonl import STRICT, Number, number_of
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import recorded_rule
from cactus_decoding.core.types import Fate
from cactus_decoding.lab.tracing.position_rows import PositionRows, check_tokens

NodeFate = Literal["accepted", "relaxed", "matched", "rejected"]


def _request_of(values: dict[str, Any]) -> Request:
    """Return the request of a header; a rule from outside the package is not imported."""
    read = dict(values)
    if "rule" in read:
        read["rule"] = recorded_rule(read["rule"])
    if read.get("budget_nats") is not None:
        read["budget_nats"] = number_of(read["budget_nats"])
    try:
        return Request.from_dict(read)
    except TypeError as error:
        raise ValueError(error) from None


@dataclass(frozen=True)
class TracedToken:
    """One of the tokens that were likely at a position under one of the models."""

    token_id: int
    token: str  # its text, special tokens by their name
    untempered: Number  # the target's probability before temperature and truncation
    target: Number  # q, the target's probability that is sampled from
    draft: Number | None  # p; None where nothing was drafted
    relaxed: Number | None  # h given the drafted token; None where nothing was drafted
    emitted: Number  # probability that this token is emitted here, averaged over what the draft may propose

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class TracedPosition:
    """A token of the response, and what the models and the rule thought where it was chosen.

    At a bonus token nothing was drafted, and it is drawn from the target's own row: the fields of the drafted token
    are None there, and nothing is spent.
    """

    place: int  # in the response, from 0
    step: int  # that made it, from 0
    emitted: bool  # whether it is part of the response: false for what a step verified after the last token
    token_id: int
    token: str  # its text by itself, special tokens by their name
    text: str  # what it adds to the response's text; a character of several tokens belongs to the last of them
    fate: Fate
    rule: str  # its spelling; a budget may have moved its width here, or replaced it by lossless
    drafted_id: int | None = None  # the drafted token n: the token itself if accepted, another if recovered
    drafted: str | None = None  # its text
    draft_prob: Number | None = None  # p(n)
    relaxed_prob: Number | None = None  # h(n), the first of the rule's two numbers
    residual_scale: Number | None = None  # s, the second one; may be infinite
    # probability that n, once drafted, was accepted; with block verification, that it was kept together with all the
    # proposals before it in its step; None where a step branches, except with `match`
    acceptance_prob: Number | None = None
    # the same before n was drawn, averaged over the draft's row; in a tree that a child is kept; None where proposals
    # are judged together
    acceptance: Number | None = None
    conditional_nats: Number | None = None  # KL(h || q) given n; None where h is no distribution
    # KL(emitted || q), averaged over the draft: what a budget is charged; for relaxed_greedy both are the
    # log-probability given up
    emitted_nats: Number = 0.0
    tv: Number = 0.0  # total variation between the emitted distribution and q, in [0, 1]
    max_log_ratio: Number = 0.0  # log of the largest emitted(x) / q(x), in nats
    fell_back: bool = False  # whether the budget could not afford the rule here, so that lossless decided
    protected: bool = False  # whether the request's policy kept the rule away here, so that lossless decided
    budget_left: Number | None = None  # nats left after this position; None without a budget
    # the likeliest tokens under either model, and the drafted and the emitted one; the target's likeliest first
    candidates: tuple[TracedToken, ...] = ()
    rows: Annotated[PositionRows | None, AfterValidator(check_tokens)] = field(default=None, compare=False, repr=False)

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class TracedNode:
    """One of a tree's proposals."""

    token_id: int
    token: str
    parent: int  # the place in the tree of the token before it; -1 for the text
    drawn: bool  # whether it was drawn; else it is *fixed*, a function of the text before it alone
    draft_prob: Number | None = None  # the draft's probability of it after its parent; None if the draft has no rows
    # accepted, relaxed or matched if it was kept, rejected if it was judged and not kept; else None
    fate: NodeFate | None = None
    rule: str | None = None  # of nodes with a fate: the spelling of the rule that decided after their parent
    nats: Number | None = None  # of the same, what that cost there

    __pydantic_config__ = STRICT


@dataclass(frozen=True)
class TracedStep:
    """Drafting and verifying once."""

    step: int  # from 0
    num_drafted: int  # tokens proposed, in a tree all its nodes
    num_accepted: int  # proposals that the rule kept, before any cut
    seconds: Number
    target_seconds: Number  # of these, the target's forward pass; on a GPU the pass is only begun in this time
    verify_seconds: Number  # of these, the decision on the proposals; the rest is drafting
    # the accepted tokens and the recovered or bonus token, also those after the end of the response
    positions: tuple[TracedPosition, ...]
    metered: int = 0  # visited positions whose cost a budget measured
    finish_reason: str | None = None  # stop or length on the last step, else None
    tree: tuple[TracedNode, ...] = ()  # the proposals, parents before children, if they were a tree

    __pydantic_config__ = STRICT

    @property
    def token_ids(self) -> list[int]:
        return [position.token_id for position in self.positions if position.emitted]

    @property
    def fates(self) -> list[Fate]:
        return [position.fate for position in self.positions if position.emitted]

    def metrics(self) -> Metrics:
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
    prompt: str
    target: str
    draft: str
    request: Annotated[Request, PlainValidator(_request_of)]  # with its seed
    vocabulary: int  # how many tokens there are
    provenance: Mapping[str, Any] = field(default_factory=dict)

    __pydantic_config__ = STRICT

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as one flat object, for JSON."""
        names = {"prompt": self.prompt, "target": self.target, "draft": self.draft}
        end = {"vocabulary": self.vocabulary, "provenance": dict(self.provenance)}
        return names | self.request.as_dict() | end


@dataclass(frozen=True)
class TraceEnd:
    text: str  # cut before a stop string
    finish_reason: str | None  # stop or length; None for a response that was interrupted
    metrics: Metrics


@dataclass(frozen=True)
class Trace:
    """A response with all that was seen while it was made."""

    header: TraceHeader
    steps: tuple[TracedStep, ...]
    text: str  # cut before a stop string
    finish_reason: str | None  # stop or length; None for a response that was interrupted
    metrics: Metrics

    @property
    def positions(self) -> tuple[TracedPosition, ...]:
        """All positions in order, also those after the end of the response."""
        return tuple(position for step in self.steps for position in step.positions)

    @property
    def token_ids(self) -> list[int]:
        return [position.token_id for position in self.positions if position.emitted]
