"""The shapes that the parts of the package exchange.

Throughout, probabilities are float tensors with the vocabulary last, and leading dimensions are positions or batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
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
        """The text that `parse_rule` turns into this rule, such as ``cactus:delta=1.0``."""
        ...

    def judge(self, target_probs: Tensor, draft_probs: Tensor | None, token_ids: Tensor) -> Verdict:
        """Return the two numbers for each of some tokens at each position, if it were the drafted one.

        Args:
            target_probs: the target's rows, ``[..., vocabulary]``.
            draft_probs: the draft's rows, ``[..., vocabulary]``, or None where the draft is deterministic.
            token_ids: the tokens asked about, ``[..., tokens]``: one for `verify`, all of them for `audit`.

        Returns:
            Numbers in float64, ``[..., tokens]``.
        """
        ...

    def recovery_target(self, target_probs: Tensor) -> Tensor:
        """Return the rows that recovery starts from, ``[..., vocabulary]``: the target's own, for most rules."""
        ...

    def relaxed_target(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor | None:
        """Return h as rows, which are then what is emitted, if it does not depend on the drafted token; else None."""
        ...


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


class Proposal(NamedTuple):
    """Tokens that a drafter proposes: the nodes of a tree, of which a chain is the common case.

    Attributes:
        token_ids: the proposed tokens, parents before their children; there may be none.
        probs: the rows they were really drawn from, ``[len(token_ids), vocabulary]``; None if the choice was
            deterministic. In a tree a row for each token that has children, the text's own first, in their order.
        parents: of each token the place of the one it follows, -1 for the text itself; None for a chain, whose parents
            are -1, 0, 1, and so on.
        drawn: of a tree's tokens, which were drawn: from their row without its fixed children and those drawn before,
            and as a function of the text before them alone where they are not. None for all, if there are rows, or
            none.
    """

    token_ids: list[int]
    probs: Tensor | None
    parents: list[int] | None = None
    drawn: list[bool] | None = None

    @property
    def is_chain(self) -> bool:
        """Whether each token follows the one before it."""
        return self.parents is None or (self.drawn is None and self.parents == [*range(-1, len(self.token_ids) - 1)])

    def tokens_to(self, node: int) -> list[int]:
        """Return the tokens from the text to a proposal, itself included; none for -1."""
        if self.parents is None:
            return self.token_ids[: node + 1]
        path: list[int] = []
        while node >= 0:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return path[::-1]

    def path_along(self, token_ids: list[int]) -> list[int]:
        """Return the places of the proposals that a continuation of the text goes along, as far as it does."""
        assert self.parents is not None
        path, at = [], -1
        nodes = range(len(self.token_ids))
        places = dict(zip(zip(self.parents, self.token_ids, strict=True), nodes, strict=True))
        for token in token_ids:
            if (at, token) not in places:
                break
            at = places[at, token]
            path.append(at)
        return path

    @property
    def depth(self) -> int:
        """The most proposals that can be kept."""
        if self.parents is None:
            return len(self.token_ids)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)


LogitsToProbs = Callable[[Tensor, list[int]], Tensor]
"""``(logits [rows, vocabulary], token_ids) -> probs``: the last row follows all tokens, each before it one fewer."""


class StepRows:
    """Both models' rows of one step, made when they are asked for.

    Args:
        logits: the target's, ``[proposals + 1, vocabulary]``; row i follows the first i proposals.
        token_ids: all the tokens, the proposals at their end.
        proposal: what was proposed.
        to_probs: from logits to the rows that are sampled from.
        untempered: from logits to the rows before temperature and truncation.
        target_probs: what ``to_probs`` made of all the logits, where that is known already.
    """

    __slots__ = ("_target_probs", "_to_probs", "_token_ids", "_untempered", "logits", "proposal")

    def __init__(
        self,
        logits: Tensor,
        token_ids: list[int],
        proposal: Proposal,
        to_probs: LogitsToProbs,
        untempered: LogitsToProbs,
        target_probs: Tensor | None = None,
    ) -> None:
        self.logits, self.proposal = logits, proposal
        self._token_ids, self._target_probs = token_ids, target_probs
        self._to_probs, self._untempered = to_probs, untempered

    def target(self, count: int | None = None) -> Tensor:
        """Return the first ``count`` of the target's rows as they are sampled from, or all, ``[count, vocabulary]``."""
        count = len(self.logits) if count is None else count
        known = self._target_probs
        if known is None:
            known = self._rows(self._to_probs, 0, count)
        elif len(known) < count:  # visits may be read one after another
            known = torch.cat([known, self._rows(self._to_probs, len(known), count)])
        self._target_probs = known
        return known[:count]

    def untempered(self, count: int | None = None) -> Tensor:
        """Return the same before temperature and truncation; at temperature 0, the token that is chosen has no equal.

        Logits may differ where their probabilities are rounded to the same number, and the first token that attains
        the greatest logit is the one that is chosen. So its equals here become less likely by the least there is.
        """
        rows = self._rows(self._untempered, 0, len(self.logits) if count is None else count)
        return _without_equals(rows, self.target(len(rows)))

    def target_of(self, node: int) -> Tensor:
        """Return the target's row that a proposal was judged in, as it is sampled from, ``[vocabulary]``."""
        return self.target(node + 1)[node]

    def untempered_of(self, node: int) -> Tensor:
        """Return the same before temperature and truncation."""
        return self.untempered(node + 1)[node]

    def draft(self, node: int) -> Tensor | None:
        """Return the row that a proposal was drawn from, ``[vocabulary]``; None where it is deterministic."""
        return None if self.proposal.probs is None else self.proposal.probs[node]

    def _rows(self, to_probs: LogitsToProbs, start: int, stop: int) -> Tensor:
        return to_probs(self.logits[start:stop], self._token_ids[: len(self._token_ids) - len(self.logits) + stop])


def _without_equals(rows: Tensor, target: Tensor) -> Tensor:
    best = target.argmax(-1, keepdim=True)
    greatest = rows.gather(-1, best)
    equals = (rows == greatest).scatter_(-1, best, False)
    return torch.where(equals, torch.nextafter(greatest, torch.zeros_like(greatest)), rows)


class TreeRows(StepRows):
    """Both models' rows of a step that proposes a tree: row 0 follows the text, row i + 1 the proposal at place i.

    Each row is made by itself, and only when it is asked for. The arguments are those of `StepRows`.
    """

    __slots__ = ("_made",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made: dict[int, Tensor] = {}

    def target_behind(self, node: int) -> Tensor:
        """Return the target's row behind a proposal, or with -1 behind the text, as it is sampled from."""
        if node not in self._made:
            self._made[node] = self._to_probs(self.logits[node + 1 : node + 2], self._text(node))[0]
        return self._made[node]

    def untempered_behind(self, node: int) -> Tensor:
        """Return the same before temperature and truncation; see `StepRows.untempered`."""
        row = self._untempered(self.logits[node + 1 : node + 2], self._text(node))
        return _without_equals(row, self.target_behind(node)[None])[0]

    def target(self, count: int | None = None) -> Tensor:
        """Return the rows behind the text and the first ``count - 1`` proposals, or all, ``[count, vocabulary]``."""
        count = len(self.logits) if count is None else count
        return torch.stack([self.target_behind(node) for node in range(-1, count - 1)])

    def untempered(self, count: int | None = None) -> Tensor:
        """Return the same before temperature and truncation."""
        count = len(self.logits) if count is None else count
        return torch.stack([self.untempered_behind(node) for node in range(-1, count - 1)])

    def target_of(self, node: int) -> Tensor:
        """Return the target's row that a proposal was judged in, as it is sampled from, ``[vocabulary]``."""
        return self.target_behind(self._parents[node])

    def untempered_of(self, node: int) -> Tensor:
        """Return the same before temperature and truncation."""
        return self.untempered_behind(self._parents[node])

    def draft(self, node: int) -> Tensor | None:
        """Return the law of a proposal beside its siblings, ``[vocabulary]``; None where it was not drawn."""
        proposal, parents, drawn = self.proposal, self._parents, self._drawn
        whole = self.draft_behind(parents[node])
        if whole is None or not drawn[node]:
            return None
        row = whole.to(torch.float64, copy=True)
        for other, token_id in enumerate(proposal.token_ids):
            if parents[other] == parents[node] and (not drawn[other] or other < node):
                row[token_id] = 0.0
        return row / row.sum()

    def parent(self, node: int) -> int:
        """Return the place of the proposal that one follows, -1 for the text."""
        return self._parents[node]

    def drawn(self, node: int) -> bool:
        """Say whether a proposal was drawn, or else is a function of the text before it alone."""
        return self._drawn[node]

    def draft_behind(self, node: int) -> Tensor | None:
        """Return the draft's whole row behind a proposal that has children, or with -1 behind the text, if any."""
        if self.proposal.probs is None:
            return None
        return self.proposal.probs[sorted(set(self._parents)).index(node)]

    def fixed_behind(self, node: int) -> list[int]:
        """Return the tokens that are proposed there as a function of the text alone, in their order."""
        nodes = zip(self._parents, self._drawn, self.proposal.token_ids, strict=True)
        return [token_id for parent, drawn, token_id in nodes if parent == node and not drawn]

    def any_drawn_behind(self, node: int) -> bool:
        """Say whether any of the proposals behind one, or with -1 behind the text, was drawn."""
        return any(drawn for parent, drawn in zip(self._parents, self._drawn, strict=True) if parent == node)

    @property
    def _drawn(self) -> list[bool]:
        """Of each proposal, whether it was drawn."""
        proposal = self.proposal
        return [proposal.probs is not None] * len(proposal.token_ids) if proposal.drawn is None else proposal.drawn

    @property
    def _parents(self) -> list[int]:
        parents = self.proposal.parents
        return list(range(-1, len(self.proposal.token_ids) - 1)) if parents is None else parents

    def _text(self, node: int) -> list[int]:
        """Return all the tokens before the row behind a proposal."""
        before = len(self._token_ids) - len(self.proposal.token_ids)
        return [*self._token_ids[:before], *self.proposal.tokens_to(node)]


class Visit(NamedTuple):
    """One visited position of a step: a proposal that was judged.

    Attributes:
        node: its place in the proposal.
        token_id: the drafted token.
        rule: what judged it: the lossless rule where a budget could not afford the request's or a policy did not let
            it, and the rule of this moment where a budget paces it.
        accepted: whether it was kept.
        relaxed: whether it was kept though the lossless test would have rejected it.
        nats: what the position cost; None where nobody measured.
        fell_back: whether the budget could not afford the rule here.
        protected: whether the request's policy did not let the rule judge here.
        rows: of both models in this step.
        matched: in a tree, the place of another proposal that the recovered token is, and behind which it goes on.
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
        """The target's row as it is sampled from, ``[vocabulary]``."""
        return self.rows.target_of(self.node)

    @property
    def draft_probs(self) -> Tensor | None:
        """The row that the token was drawn from, ``[vocabulary]``; None where the draft is deterministic."""
        return self.rows.draft(self.node)

    @property
    def verdict(self) -> Verdict:
        """The rule's two numbers about the drafted token, ``[1]`` each."""
        judged = self.rows.untempered_of(self.node) if judges_untempered(self.rule) else self.target_probs
        return self.rule.judge(judged, self.draft_probs, torch.tensor([self.token_id], device=judged.device))


def judges_untempered(rule: AcceptanceRule) -> bool:
    """Say whether a rule judges the rows before temperature, as those for temperature 0 do."""
    return getattr(rule, "judges_untempered", False)


class Fate(StrEnum):
    """How an emitted token came about."""

    ACCEPTED = "accepted"
    RELAXED = "relaxed"
    RECOVERED = "recovered"
    BONUS = "bonus"
    MATCHED = "matched"
    """Recovered, and one of the proposals too: in a tree the step goes on behind it."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one step of drafting and verifying decided, and all that it was decided from.

    Metrics, traces, audits and recorded rows are read from it. It holds the step's rows: keep what is needed of them,
    not the outcome.

    Attributes:
        proposal: what the drafter proposed.
        path: places of the proposals that were kept, in order; for a chain the first few.
        next_token: the recovered token, or the bonus token where nothing was proposed behind the last that was kept.
        visits: the positions of those that were kept and the one where none was, in order.
        rows: of both models.
        num_emitted: tokens handed on: all of them, unless one ended the response.
        finish_reason: ``stop`` or ``length`` on the last step, else None.
        draft_seconds: wall time of drafting.
        target_seconds: of the target's forward pass. On a GPU the pass is only begun in this time.
        verify_seconds: of the decision.
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

    @property
    def num_drafted(self) -> int:
        """Tokens proposed."""
        return len(self.proposal.token_ids)

    @property
    def num_accepted(self) -> int:
        """Proposals kept, before any cut by the end of the response."""
        return len(self.path)

    @property
    def num_relaxed(self) -> int:
        """Those among them that the lossless test would have rejected."""
        return sum(visit.relaxed for visit in self.visits)

    @property
    def num_fell_back(self) -> int:
        """Visited positions where the budget could not afford the rule."""
        return sum(visit.fell_back for visit in self.visits)

    @property
    def num_protected(self) -> int:
        """Visited positions where the request's policy did not let the rule judge."""
        return sum(visit.protected for visit in self.visits)

    @property
    def nats(self) -> list[float]:
        """What each visited position cost; nothing where nobody measured."""
        return [visit.nats for visit in self.visits if visit.nats is not None]

    @property
    def all_token_ids(self) -> list[int]:
        """The accepted tokens and the next one, also those behind a token that ends the response."""
        return [*(self.proposal.token_ids[node] for node in self.path), self.next_token]

    @property
    def all_fates(self) -> list[Fate]:
        """How each of them came about."""
        kept = [visit for visit in self.visits if visit.accepted or visit.matched is not None]
        fates = [Fate.RELAXED if each.relaxed else Fate.ACCEPTED if each.accepted else Fate.MATCHED for each in kept]
        return [*fates, Fate.RECOVERED if self.num_accepted < len(self.visits) else Fate.BONUS]

    @property
    def token_ids(self) -> list[int]:
        """The tokens that were handed on."""
        return self.all_token_ids[: self.num_emitted]

    @property
    def fates(self) -> list[Fate]:
        """How each of them came about."""
        return self.all_fates[: self.num_emitted]


@runtime_checkable
class DraftLength(Protocol):
    """Chooses how many tokens to propose in each step.

    The loop tells it about each step: `begin_step`, then what was proposed, then what was kept. Drafters that see
    their own rows ask `should_continue` after each proposal. It sees rows and never drawn tokens, and what was drawn
    stays proposed, so no choice it makes can change the law of what is emitted.

    Attributes:
        fixed: whether every step proposes the same number of tokens.
    """

    fixed: ClassVar[bool]

    @property
    def max_draft_tokens(self) -> int:
        """Upper limit of the proposals in any step, in a tree of those that follow one another."""
        ...

    def begin_response(self) -> None:
        """Hear that the next step is the first of a response, and also reads the prompt."""
        ...

    def begin_step(self) -> int:
        """Return how many tokens the next step may propose, from 0 to ``max_draft_tokens``."""
        ...

    def should_continue(self, logits: Tensor) -> bool:
        """Say whether to propose another token after one that was drawn from a row of the draft.

        Args:
            logits: the row as the draft gave it, ``[vocabulary]``: no temperature, no cuts.
        """
        ...

    def end_draft(self, num_drafted: int) -> None:
        """Hear how many tokens were proposed."""
        ...

    def end_step(self, num_accepted: int) -> None:
        """Hear how many of them were kept."""
        ...


@runtime_checkable
class Drafter(Protocol):
    """Where proposals come from. A subclass need not have more than `propose`.

    A drafter may look at its own rows and at earlier tokens to choose *how many* tokens to propose, but it must never
    drop a token it has drawn for being unlikely: that changes the law of the draft, and lossless is no longer lossless.

    Attributes:
        max_length: tokens that the draft's context window holds, if it has one.
        fixed_blocks: whether it proposes as many tokens as it is asked for, each drawn given those before it alone.
        grows_trees: whether it proposes a tree where the length of a response is a tree's shape.
    """

    max_length: int | None = None
    fixed_blocks: ClassVar[bool] = False
    grows_trees: ClassVar[bool] = False

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Hear of a response that is about to begin.

        Args:
            target: the target with an empty cache, a `BaseCachedModel`, for drafters that look into it.
            length: to be asked after each row whether to go on, by drafters that have rows.
        """
        return None

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        """Propose at most ``limit`` tokens to follow a sequence.

        From one call to the next the sequence only grows, by accepted proposals and one more token; a shorter one, or
        one that differs before that, starts a new response.
        """
        ...

    def reset(self) -> None:
        """Forget the last response."""
        return None

    def twin(self) -> Drafter:
        """Return a drafter with the same weights and a cache of its own.

        Raises:
            TypeError: for one that keeps more than a model's cache and cannot be doubled.
        """
        raise TypeError(f"a {type(self).__name__} cannot be shared by two responses at once")
