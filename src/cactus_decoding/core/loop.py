"""The draft-verify loop: a generator of outcomes."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from cactus_decoding.core.drafting.automatic import AutoLength
from cactus_decoding.core.drafting.automatic.choosing import LengthChooser
from cactus_decoding.core.models.base import BaseCachedModel, append_proposal, keep_path
from cactus_decoding.core.sampling.rows import check_drawn, one_hot
from cactus_decoding.core.types import (
    MAX_FORCED,
    ROOT,
    Drafter,
    DraftLength,
    ForcedTokens,
    LogitsToProbs,
    Outcome,
    Proposal,
)
from cactus_decoding.core.verification.walk import Verifier

if TYPE_CHECKING:
    from cactus_decoding.core.models.tokenizers import Tokenizer

StopCheck = Callable[[list[int]], bool]  # whether, given all the tokens so far, the last one ends the response


class StoppingCriteria:
    """Ends a response at a stop token, or as soon as its text holds a stop string; the prompt is not searched."""

    def __init__(
        self, token_ids: Sequence[int], strings: Sequence[str], tokenizer: Tokenizer, prompt_length: int
    ) -> None:
        self._token_ids = frozenset(token_ids)
        self._strings = tuple(strings)
        self._tokenizer = tokenizer
        self._prompt_length = prompt_length
        # a stop string cannot span more tokens than it has bytes, but text is decoded from a token boundary: one spare
        self._window = max((len(s.encode()) for s in strings), default=0) + 1

    def __call__(self, token_ids: list[int]) -> bool:
        if token_ids[-1] in self._token_ids:
            return True
        if not self._strings:
            return False
        start = max(self._prompt_length, len(token_ids) - self._window)
        text = self._tokenizer.decode(token_ids[start:], skip_special_tokens=True)
        return any(s in text for s in self._strings)


def cut_at_stop(text: str, strings: Sequence[str]) -> str:
    return text[: min((text.index(s) for s in strings if s in text), default=len(text))]


def decode(
    target: BaseCachedModel,
    drafter: Drafter,
    prompt_ids: list[int],
    verifier: Verifier,
    to_probs: LogitsToProbs,
    *,
    draft_length: DraftLength,
    max_length: int,
    stopping_criteria: StopCheck,
    generator: torch.Generator | None,
    first_alone: bool = False,
    free: bool = False,
    forced: ForcedTokens | None = None,
    fixed_blocks: bool = False,
) -> Generator[Outcome]:
    """Yield the outcome of each step until a token ends the response or the sequence has ``max_length`` tokens.

    `response.begin` checks the arguments. ``to_probs`` is what the draft samples with; with ``first_alone`` the first
    step drafts nothing, so that there is a token before the draft has read the prompt. ``forced`` tokens are proposed
    beside what is drafted, and the draft length hears nothing of them; with ``fixed_blocks`` they take places of what
    is drafted. See `AutoLength.start` for ``free``.
    """
    ids, vocabulary = list(prompt_ids), target.vocabulary_size
    with torch.inference_mode():
        if isinstance(draft_length, AutoLength):
            draft_length, drafter = draft_length.start(target, drafter, max_length - len(ids), free=free)
        target.forget_if_changed()
        target.recall(ids)
        target.read_on(ids)
        draft_length.begin_response()
        drafter.begin_response(target, draft_length)
        state, finish_reason, clock = verifier.begin(prompt_ids), None, time.perf_counter
        timer = target.clock
    while finish_reason is None:
        try:
            with torch.inference_mode():  # per step: an abandoned response must not hold it at exit
                began, started = clock(), timer()
                room = max_length - len(ids) - 1  # one place is for the next token
                around = forced if forced is not None and not fixed_blocks else lambda *_: []
                before = around(ids, min(room, MAX_FORCED))
                text, limit = ids + before, min(draft_length.begin_step(), room - len(before))
                limit, first_alone = 0 if first_alone else limit, False
                drafts = drafter.propose(text, limit, to_probs, generator) if limit > 0 else Proposal([], None)
                check_nodes(drafts, vocabulary)
                if forced is not None:
                    drafts = with_marks(cut(drafts, limit if fixed_blocks else room - len(before)), text, forced)
                check_limit(drafts, limit)
                counted = {*range(len(drafts.token_ids))} - drafts.forced
                draft_length.end_draft(len(counted))
                after = list[int]()
                if drafts.token_ids and not drafts.branches:
                    room -= len(before) + len(drafts.token_ids)
                    after = around(text + drafts.token_ids, min(room, MAX_FORCED - len(drafts.forced)))
                proposal = with_forced(before, drafts, after)
                block, unread, drafted = ids + proposal.token_ids, len(ids) - target.length, clock()
                passing = timer()
                logits = append_proposal(target, ids, proposal)
                read = clock()
                state, outcome = verifier(state, logits, block, proposal, generator)
                check_drawn("target", outcome.next_token, logits, len(ids) + outcome.num_accepted)
                keep_path(target, len(ids), proposal, outcome.path)
                kept = [node - len(before) for node in outcome.path if node - len(before) in counted]
                if isinstance(draft_length, LengthChooser):
                    draft_length.timed(unread + len(proposal.token_ids), passing - started, timer() - passing)
                draft_length.end_step(len(kept))
                verified, num_emitted = clock(), 0
                for token in outcome.all_token_ids:
                    ids.append(token)
                    num_emitted += 1
                    if stopping_criteria(ids):
                        finish_reason = "stop"
                    elif len(ids) >= max_length:
                        finish_reason = "length"
                    if finish_reason is not None:
                        break
        except Exception:  # such as logits of NaN, which keys and values of NaN lead to
            target.reset()
            drafter.reset()
            raise
        yield replace(
            outcome,
            num_emitted=num_emitted,
            finish_reason=finish_reason,
            draft_seconds=drafted - began,
            target_seconds=read - drafted,
            verify_seconds=verified - read,
        )


def with_forced(before: list[int], proposal: Proposal, after: list[int]) -> Proposal:
    """Return a proposal between tokens that must come before it and, if it is a chain, tokens that must come after it.

    Where a constraint allows a single token, the rows of both models have probability 1 there. So a forced token is
    proposed as one that was drawn from such a row, and every rule keeps it.
    """
    if not before and not after:
        return proposal
    inner = proposal.token_ids
    first, end = len(before), len(before) + len(inner)
    token_ids = [*before, *inner, *after]
    forced = frozenset([*range(first), *(first + node for node in proposal.forced), *range(end, len(token_ids))])
    if not inner or (proposal.probs is None and not proposal.branches):
        return Proposal(token_ids, None, forced=forced)
    parents = [*range(ROOT, first - 1), *(first + parent for parent in proposal.parents)]
    parents += range(end - 1, len(token_ids) - 1)
    probs, drawn = proposal.probs, [proposal.probs is not None] * len(token_ids)
    drawn[first:end] = proposal.drawn
    if probs is not None:
        probs = torch.cat([one_hot(before, probs), probs, one_hot(after, probs)])
    return Proposal(token_ids, probs, parents, drawn, forced)


def cut(chain: Proposal, count: int) -> Proposal:
    """Return the first tokens of a chain; trees never have more levels than they were asked for."""
    if chain.branches or len(chain.token_ids) <= count:
        return chain
    probs = None if chain.probs is None else chain.probs[:count]
    return Proposal(chain.token_ids[:count], probs, drawn=chain.drawn[:count])


def with_marks(proposal: Proposal, text: list[int], forced: ForcedTokens) -> Proposal:
    """Return a proposal that says which of its tokens are the only ones that may stand there."""
    only = {parent: forced(text + proposal.tokens_to(parent), 1) for parent in proposal.children}
    edges = zip(proposal.parents, proposal.token_ids, strict=True)
    return replace(proposal, forced=frozenset(n for n, (parent, token) in enumerate(edges) if only[parent] == [token]))


def check_limit(proposal: Proposal, limit: int) -> None:
    asked = proposal.depth if proposal.branches else len(proposal.token_ids) - len(proposal.forced)
    if asked > max(limit, 0):
        raise ValueError(f"a drafter must propose at most the {limit} tokens that it was asked for: {asked}")


def check_nodes(proposal: Proposal, vocabulary: int) -> None:
    """Raise `ValueError` for what a drafter must not propose: models would fail on it without saying why."""
    token_ids, probs, parents, drawn = proposal.token_ids, proposal.probs, proposal.parents, proposal.drawn
    if len(parents) != len(token_ids) or not all(-1 <= parent < node for node, parent in enumerate(parents)):
        raise ValueError(f"a drafter's parents must be places before those of their children, but are {parents}")
    if len(drawn) != len(token_ids):
        raise ValueError(f"a drafter must say of each token of a tree whether it was drawn, but says {drawn}")
    if any(drawn) and probs is None:
        raise ValueError("a drafter must give the rows that tokens of a tree were drawn from, but gives none")
    if len(set(zip(parents, token_ids, strict=True))) < len(token_ids):
        raise ValueError(f"a drafter's tokens after the same one must differ, but are {token_ids} after {parents}")
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocabulary):
        given = f"{min(token_ids)} to {max(token_ids)}"
        raise ValueError(f"a drafter must propose tokens in [0, {vocabulary}), but they range over {given}")
    expected = [len(set(parents)), vocabulary]
    if token_ids and probs is not None and list(probs.shape) != expected:
        raise ValueError(
            f"a drafter's probs must be {expected}, a row for each token that has children, and for the text, but the "
            f"shape is {list(probs.shape)}"
        )
