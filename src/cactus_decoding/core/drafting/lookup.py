"""Drafters that copy from where a text repeats itself."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

import torch

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.suffix_index import END, Match, SuffixIndex
from cactus_decoding.core.drafting.trees.shape import LookupTree, TreeShape
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import MAX_FORCED, Drafter, DraftLength, ForcedTokens, LogitsToProbs, Proposal


@dataclass
class _Response:
    index: SuffixIndex = field(default_factory=SuffixIndex)
    shape: TreeShape | None = None


@dataclass(frozen=True)
class LookUpDrafter(Drafter):
    """Proposes what followed where the text's end stood before: deterministic, so without probabilities."""

    _response: _Response = field(default_factory=_Response, init=False, repr=False, compare=False)

    name: ClassVar[str]
    grows_trees: ClassVar[bool] = True
    may_be_left_out: ClassVar[bool] = True

    def __str__(self) -> str:
        return spell(self.name, self)

    def begin_response(self, target: Any, draft_length: DraftLength) -> None:
        self._response.shape = draft_length if isinstance(draft_length, TreeShape) else None

    def propose(
        self, token_ids: list[int], limit: int, to_probs: LogitsToProbs, generator: torch.Generator | None
    ) -> Proposal:
        self.follow(token_ids)
        if (shape := self._response.shape) is None:
            forced = getattr(to_probs, "forced", None)
            copied = next(iter(self.branches(limit if forced is None else limit + MAX_FORCED)), [])
            return Proposal(copied if forced is None else cut_to_unforced(copied, limit, token_ids, forced), None)
        found = LookupTree.of(self.branches(limit), shape.max_nodes, shape.max_children)
        return Proposal(found.token_ids, None, found.parents)

    def follow(self, token_ids: list[int]) -> None:
        """Index the text so far, which may have lost tokens at its end since the last call."""
        self._response.index.follow(token_ids)

    @abstractmethod
    def branches(self, limit: int) -> Iterable[list[int]]:
        """Return up to ``limit`` tokens after each place that is found, the best first."""

    def drafter(self, target: Any) -> Self:
        return self

    def twin(self) -> Self:
        """Return a drafter with the same parameters that knows no text yet, for another response at the same time."""
        return replace(self)


def cut_to_unforced(found: list[int], limit: int, text: list[int], forced: ForcedTokens) -> list[int]:
    """Return the longest beginning of ``found``, tokens after ``text``, in which at most ``limit`` are not forced."""
    for place, token in enumerate(found):
        limit -= forced(text + found[:place], 1) != [token]
        if limit < 0:
            return found[:place]
    return found


@dataclass(frozen=True)
class NgramDrafter(LookUpDrafter):
    """Prompt lookup: finds the latest earlier occurrence of the last few tokens and proposes what followed it.

    The longest match wins; if the draft length is a tree's shape, several matches become its branches, the best first.
    The proposal is deterministic, so it has no probabilities. Source: Saxena (2023).

    Attributes:
        max_ngram_size: longest run of tokens to look for, 1 or more.
        min_ngram_size: shortest run that counts as a match, from 1 to ``max_ngram_size``.

    Raises:
        ValueError: for a size out of range.

    Example:
        >>> NgramDrafter().propose([5, 6, 7, 8, 5, 6], 2, lambda logits, ids: logits, None).token_ids
        [7, 8]
    """

    max_ngram_size: int = 3
    min_ngram_size: int = 1

    name: ClassVar[str] = "ngram"

    def __post_init__(self) -> None:
        longest = check_integer("max_ngram_size", self.max_ngram_size, 1)
        object.__setattr__(self, "max_ngram_size", longest)
        object.__setattr__(self, "min_ngram_size", check_integer("min_ngram_size", self.min_ngram_size, 1, longest))

    def branches(self, limit: int) -> Iterator[list[int]]:
        return self._response.index.continuations(limit, self.max_ngram_size, self.min_ngram_size)


@dataclass
class Answers:
    """Earlier answers, each followed by `END` in ``index``; the oldest are forgotten."""

    index: SuffixIndex = field(default_factory=SuffixIndex)
    prompt_length: int = 0
    _kept: deque[list[int]] = field(default_factory=deque)

    def keep(self, token_ids: list[int], limit: int) -> None:
        """Keep an answer, or as much of its end as there is room for; forget half when there is no more."""
        ended = [*token_ids[max(0, len(token_ids) + 1 - limit) :], END]
        self._kept.append(ended)
        if len(self.index.token_ids) + len(ended) <= limit:
            self.index.add(ended)
            return
        while sum(map(len, self._kept)) > max(limit // 2, len(ended)):
            self._kept.popleft()
        self.index = SuffixIndex([*chain.from_iterable(self._kept)])


@dataclass(frozen=True)
class SuffixDrafter(LookUpDrafter):
    r"""Finds where the longest end of the text stood before and proposes what most of these places agree on.

    A proposal is as long as it is likely to be kept: it ends before the first token k with

    .. math:: \prod_{i=1}^{k} \frac{e_i}{e_i + 1} < \mathtt{min\_token\_prob}, \qquad e_i = (s + i - 1) \, a_i,

    s being how many tokens of the end were found, and a_i the share of the places that agree on the i-th token, of
    those that agreed so far. That follows from the text alone: the proposal is deterministic, and has no probabilities.
    Source: SuffixDecoding (Oliaro et al., arXiv 2411.04975), whose trees are replaced by an index here.

    Attributes:
        min_token_prob: in [0, 1]; 0 proposes as much as may be. With `AutoLength` pass times decide instead.
        earlier: how many tokens of this drafter's earlier answers are looked through too. What is proposed, and with it
            what a seed gives, then depends on them; a twin has its own.

    Raises:
        TypeError: for a parameter of the wrong type.
        ValueError: for one out of range.

    Example:
        >>> SuffixDrafter().propose([5, 6, 7, 8, 5, 6], 2, lambda logits, ids: logits, None).token_ids
        [7, 8]
    """

    min_token_prob: Annotated[float, Setting("chance of being kept, below which a proposal ends", ge=0, le=1)] = 0.1
    earlier: Annotated[int, Setting("earlier answers that are looked through too", "tokens", ge=0, le=10_000_000)] = 0
    _answers: Answers = field(default_factory=Answers, init=False, repr=False, compare=False)

    name: ClassVar[str] = "suffix"

    def __post_init__(self) -> None:
        check_fields(self)

    def begin_response(self, target: Any, draft_length: DraftLength) -> None:
        """Remember the last answer, as far as a step followed it, if earlier ones count."""
        super().begin_response(target, draft_length)
        answer = self._response.index.token_ids[self._answers.prompt_length :]
        if self.earlier and self._answers.prompt_length and answer:
            self._answers.keep(answer, self.earlier)
        self._answers.prompt_length = 0

    def follow(self, token_ids: list[int]) -> None:
        super().follow(token_ids)
        self._answers.prompt_length = self._answers.prompt_length or len(token_ids)

    def longest(self, limit: int) -> Match:
        """Return up to ``limit`` tokens that most places agree on, likely to be kept or not."""
        return self._response.index.longest(limit, self._answers.index)

    def branches(self, limit: int) -> Iterator[list[int]]:
        """Yield as much of what most places agree on as is likely to be kept; then what followed each of them."""
        found, chance, likely = self.longest(limit), 1.0, 0
        for support in found.support:
            chance *= support / (support + 1)
            if chance < self.min_token_prob:
                break
            likely += 1
        yield found.token_ids[:likely]
        yield from self._response.index.continuations(limit)
