"""The types that the parts of the package exchange.

Probabilities are float tensors with the vocabulary last; leading dimensions are positions or batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import Tensor


ROOT = -1  # the node of a tree that stands for the text itself


@dataclass(frozen=True)
class Proposal:
    """Tokens that a drafter proposes: the nodes of a tree, of which a chain is the common case.

    Attributes:
        token_ids: the proposed tokens, parents before their children; there may be none.
        probs: the probabilities they were really drawn from, one row for each token that has children, the text's own
            first, in their order, ``[rows, vocabulary]``; None if the choice was deterministic.
        parents: of each token the node of the one it follows, -1 for the text itself. By default each follows the one
            before it.
        drawn: of each token whether it was drawn from its row without its fixed siblings and those drawn before it;
            other tokens are functions of the text before them alone. By default all were drawn if there are ``probs``.
        forced: the places of those that a constraint leaves no choice about; see `with_forced`.
    """

    token_ids: list[int]
    probs: Tensor | None
    parents: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    forced: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if not self.parents:
            object.__setattr__(self, "parents", [*range(ROOT, count - 1)])
        if not self.drawn:
            object.__setattr__(self, "drawn", [self.probs is not None] * count)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The children of each node that has some, the fixed ones first; keys in the order of ``probs``."""
        behind: dict[int, tuple[list[int], list[int]]] = {}
        for node, (parent, drawn) in enumerate(zip(self.parents, self.drawn, strict=True)):
            behind.setdefault(parent, ([], []))[drawn].append(node)
        return {parent: [*fixed, *drawn] for parent, (fixed, drawn) in sorted(behind.items())}

    @property
    def branches(self) -> bool:
        """Whether some token, or the text, has several children."""
        return len(set(self.parents)) < len(self.parents)

    @property
    def is_plain_chain(self) -> bool:
        """Whether each token follows the one before it, and all were drawn, or all are functions of the text."""
        return not self.branches and all(drawn == (self.probs is not None) for drawn in self.drawn)

    def row_after(self, node: int) -> Tensor | None:
        """Return the draft's whole row after a node that has children, or with -1 after the text, if there is one."""
        return None if self.probs is None else self.probs[[*self.children].index(node)]

    def tokens_to(self, node: int) -> list[int]:
        """Return the tokens from the text to a node, itself included; none for -1."""
        path: list[int] = []
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return path[::-1]

    def path_along(self, token_ids: list[int]) -> list[int]:
        """Return the nodes that a continuation of the text goes along, as far as it does."""
        path, at = [], ROOT
        edges = zip(self.parents, self.token_ids, strict=True)
        children = {edge: node for node, edge in enumerate(edges)}
        for token in token_ids:
            if (at, token) not in children:
                break
            at = children[at, token]
            path.append(at)
        return path

    @property
    def depth(self) -> int:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)


MAX_FORCED = 32
"""Forced tokens that a step proposes before what is drafted, and beside it: the target's rows take memory."""
ForcedTokens = Callable[[list[int], int], list[int]]
"""``(token_ids, limit)``: the tokens that must follow all the tokens so far, at most so many."""
LogitsToProbs = Callable[["Tensor", list[int]], "Tensor"]
"""``(logits [rows, vocabulary], token_ids) -> probs``: the last row follows all tokens, each before it one fewer."""


def without_equals(probs: Tensor, token_ids: Tensor) -> Tensor:
    """Return rows, ``[..., vocabulary]``, in which no other token equals the chosen likeliest one, ``[..., 1]``.

    The first token with the greatest logit is chosen. Others may round to the same probability, so theirs are made
    smaller by the least there is.
    """
    import torch

    greatest = probs.gather(-1, token_ids)
    equals = (probs == greatest).scatter(-1, token_ids, False)
    return torch.where(equals, torch.nextafter(greatest, torch.zeros_like(greatest)), probs)


class StepRows:
    """Both models' probabilities in one step; each row is computed when it is first asked for.

    ``logits`` are the target's, ``[proposals + 1, vocabulary]``: row 0 follows the text, row i + 1 proposal i.
    ``token_ids`` are all the tokens, the proposals at their end.
    """

    __slots__ = ("_made", "_to_probs", "_to_untempered", "_token_ids", "logits", "proposal")

    def __init__(
        self,
        logits: Tensor,
        token_ids: list[int],
        proposal: Proposal,
        to_probs: LogitsToProbs,
        to_untempered: LogitsToProbs,
    ) -> None:
        self.logits, self.proposal = logits, proposal
        self._token_ids, self._to_probs, self._to_untempered = token_ids, to_probs, to_untempered
        self._made: dict[int, Tensor] = {}

    def target_after(self, node: int) -> Tensor:
        """Return the target's row after a node, or with -1 after the text, as it is sampled from."""
        if node not in self._made:
            self._made[node] = self._to_probs(self.logits[node + 1 : node + 2], self.text(node))[0]
        return self._made[node]

    def target_along(self, count: int) -> Tensor:
        """Return the target's rows after the text and a chain's first proposals, ``[count, vocabulary]``."""
        import torch

        return torch.stack([self.target_after(node) for node in range(ROOT, count - 1)])

    def untempered_after(self, node: int) -> Tensor:
        """Return the same before temperature and truncation, where the token chosen at temperature 0 has no equal."""
        row = self._to_untempered(self.logits[node + 1 : node + 2], self.text(node))[0]
        return without_equals(row, self.target_after(node).argmax(-1, keepdim=True))

    def target_of(self, node: int) -> Tensor:
        """Return the target's row that a proposal was judged in, as it is sampled from, ``[vocabulary]``."""
        return self.target_after(self.proposal.parents[node])

    def untempered_of(self, node: int) -> Tensor:
        """Return the same before temperature and truncation."""
        return self.untempered_after(self.proposal.parents[node])

    def draft(self, node: int) -> Tensor | None:
        """Return the distribution of a proposal beside its siblings, ``[vocabulary]``; None where it was not drawn."""
        import torch

        proposal, parent = self.proposal, self.proposal.parents[node]
        whole = proposal.row_after(parent)
        if whole is None or not proposal.drawn[node]:
            return None
        siblings = proposal.children[parent]
        if len(siblings) == 1:
            return whole
        row = whole.to(torch.float64, copy=True)
        for other in siblings[: siblings.index(node)]:
            row[proposal.token_ids[other]] = 0.0
        return row / row.sum()

    def text(self, node: int) -> list[int]:
        before = len(self._token_ids) - len(self.proposal.token_ids)
        return [*self._token_ids[:before], *self.proposal.tokens_to(node)]


@runtime_checkable
class DraftLength(Protocol):
    """Chooses how many tokens to propose in each step.

    The loop tells it about each step: `begin_step`, then what was proposed, then what was kept. Drafters that see their
    own logits ask `should_continue` about each. It sees logits and never drawn tokens, and what was drawn stays
    proposed, so no choice it makes can change the distribution of what is emitted, as long as every step has random
    numbers of its own. Where steps are judged as a whole, or the target shares its noise with the draft, relaxed rules
    take ``fixed`` ones only.

    Attributes:
        fixed: whether every step proposes the same number of tokens.
    """

    fixed: ClassVar[bool]

    @property
    def max_draft_tokens(self) -> int:
        """Upper limit of the proposals in any step; in a tree, of those that follow one another."""

    def begin_response(self) -> None:
        """Called before the first step of a response, which also reads the prompt."""

    def begin_step(self) -> int:
        """Return how many tokens the next step may propose, from 0 to ``max_draft_tokens``."""

    def should_continue(self, logits: Tensor) -> bool:
        """Return whether to propose another token after one that was drawn from these logits.

        Args:
            logits: as the draft model gave them, ``[vocabulary]``, before temperature and truncation.
        """

    def end_draft(self, num_drafted: int) -> None:
        """Called with the number of proposed tokens."""

    def end_step(self, num_accepted: int) -> None:
        """Called with the number of proposals that were kept."""


@runtime_checkable
class Drafter(Protocol):
    """Where proposals come from. A subclass need not have more than `propose`.

    A drafter may look at its own probabilities and at earlier tokens to choose *how many* tokens to propose, but it
    must never drop a token it has drawn for being unlikely: that changes the draft's distribution, and lossless is no
    longer lossless. One that draws with shared noise must also forget what it proposed and was not kept, if the rule
    relaxes.

    Attributes:
        max_length: tokens that the draft's context window holds, if it has one.
        fixed_blocks: whether it proposes as many tokens as it is asked for, each drawn given those before it alone.
        grows_trees: whether it proposes a tree if the draft length of a response is a tree's shape.
        may_be_left_out: whether steps may do without it, so that it may first be asked in the middle of a response.
    """

    max_length: int | None = None
    fixed_blocks: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = False
    may_be_left_out: ClassVar[bool] = False

    def begin_response(self, target: Any, draft_length: DraftLength) -> None:
        """Called when a response begins.

        Args:
            target: a `BaseCachedModel`, for drafters that look into it; its cache may hold a beginning of the prompt.
            draft_length: asked after each row whether to go on, by drafters that have rows.
        """
        return None

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose at most ``limit`` tokens to follow a sequence.

        Where ``to_probs`` has a method ``forced`` (`ForcedTokens`), tokens of a chain that it returns do not count.

        From one call to the next the sequence only grows, by accepted proposals and one more token; a shorter one, or
        one that differs before that, starts a new response.
        """

    def reset(self) -> None:
        """Forget the last response."""
        return None

    def twin(self) -> Drafter:
        """Return a drafter with the same weights and its own cache.

        Raises:
            TypeError: for one that keeps more than a model's cache and cannot be doubled.
        """
        raise TypeError(f"a {type(self).__name__} cannot be shared by two responses at once")


def check_drafter(drafter: object) -> None:
    if isinstance(drafter, type) or not isinstance(drafter, Drafter):
        name = repr(drafter) if isinstance(drafter, type) else f"a {type(drafter).__name__}"  # not all of a model
        raise TypeError(f"drafter must be a subclass of cactus_decoding.Drafter, but is {name}")


class Verdict(NamedTuple):
    """What a rule says of a drafted token: two numbers, and what recovery starts from.

    Attributes:
        relaxed_prob: h(n), the relaxed target's probability of the drafted token n, ``[..., tokens]``. With u uniform
            in [0, 1), n is accepted when ``u * draft_prob(n) < h(n)``.
        residual_scale: s, ``[..., tokens]``, from 0 to infinity. After a rejection the token is drawn in proportion to
            the positive part of ``s * recovery - draft_probs``; infinity means ``recovery`` itself.
        recovery: what recovery starts from, ``[..., vocabulary]``; None for the target's own probabilities. Beside a
            deterministic draft there may be a row for each token, ``[..., tokens, vocabulary]``.
    """

    relaxed_prob: Tensor
    residual_scale: Tensor
    recovery: Tensor | None = None

    def recovers_from(self, target_probs: Tensor) -> Tensor:
        """Return what recovery starts from, if there is one drafted token, in the shape of the target's rows."""
        return target_probs if self.recovery is None else self.recovery.reshape(target_probs.shape)


@runtime_checkable
class AcceptanceRule(Protocol):
    """A rule that accepts or rejects drafted tokens: pure, deterministic, picklable."""

    def __str__(self) -> str:
        """Return the text that `parse_rule` turns into this rule, such as ``cactus:delta=1.0``."""

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return what the rule says of each of some tokens at each position, if it were the drafted one.

        Args:
            target_probs: the target's probabilities, ``[..., vocabulary]``.
            draft_probs: the draft's probabilities, ``[..., vocabulary]``, or None where the draft is deterministic.
            token_ids: the tokens asked about, ``[..., tokens]``: one for `verify`, all of them for `audit`.

        Returns:
            Numbers in float64, ``[..., tokens]``.
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


class DecisionReason(StrEnum):
    ALLOWED = "allowed"
    PROTECTED = "protected"  # the relaxation policy did not let the rule judge
    FELL_BACK = "fell_back"  # the budget could not afford the rule


class Decision(NamedTuple):
    """Which rule judges a position, decided without the drafted token.

    Attributes:
        rule: the lossless rule where a budget could not afford the request's or a policy did not let it; else the
            request's, narrowed where a budget paces it.
        cost: of the request's rule, in nats, whether afforded or not; 0 where it is not allowed, None where nobody
            measures.
        why: whether the request's rule was allowed, and if not, why.
    """

    rule: AcceptanceRule
    cost: float | None = None
    why: DecisionReason = DecisionReason.ALLOWED

    @property
    def nats(self) -> float | None:
        """What the position costs the response."""
        return 0.0 if self.why is DecisionReason.FELL_BACK else self.cost


class Visit(NamedTuple):
    """One visited position of a step: what was decided about it, and what became of its proposal.

    Attributes:
        rows: probabilities of both models in this step.
        node: which token of the proposal was judged.
        decision: which rule judged it, why, and at what cost.
        accepted: whether it was kept.
        relaxed: whether it was kept though the lossless test would have rejected it.
        matched: another node of the proposal that is the recovered token, after which the step goes on.
    """

    rows: StepRows
    node: int
    decision: Decision
    accepted: bool
    relaxed: bool = False
    matched: int | None = None

    @property
    def parent(self) -> int:
        """The node that the position follows, -1 for the text."""
        return self.rows.proposal.parents[self.node]

    @property
    def token_id(self) -> int:
        """The drafted token."""
        return self.rows.proposal.token_ids[self.node]

    @property
    def rule(self) -> AcceptanceRule:
        """What judged it."""
        return self.decision.rule

    @property
    def nats(self) -> float | None:
        """What the position cost; None where nobody measured."""
        return self.decision.nats

    @property
    def fell_back(self) -> bool:
        """Whether the budget could not afford the rule here."""
        return self.decision.why is DecisionReason.FELL_BACK

    @property
    def protected(self) -> bool:
        """Whether the request's policy did not let the rule judge here."""
        return self.decision.why is DecisionReason.PROTECTED

    @property
    def kept(self) -> int | None:
        """Which token of the proposal the step goes on after; None where it ends here."""
        return self.node if self.accepted else self.matched

    @property
    def target_probs(self) -> Tensor:
        """The target's probabilities as they are sampled from, ``[vocabulary]``."""
        return self.rows.target_of(self.node)

    @property
    def draft_probs(self) -> Tensor | None:
        """The probabilities that the token was drawn from, ``[vocabulary]``; None where the draft is deterministic."""
        return self.rows.draft(self.node)


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
        kept = [visit for visit in self.visits if visit.kept is not None]
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
