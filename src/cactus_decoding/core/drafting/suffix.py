"""Proposals on which most places agree where the longest end of the text stood, of any length that they bear."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.drafting.lookup import LookUpDrafter
from cactus_decoding.core.drafting.suffix_index import END, Match, SuffixIndex
from cactus_decoding.core.types import DraftLength


@dataclass
class Answers:
    """Earlier answers, of which the oldest are forgotten.

    Attributes:
        index: of those that are kept, each with an end behind it.
        prompt_length: of the response that is being written; 0 before its first step.
    """

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
    Source: SuffixDecoding (Oliaro et al., arXiv 2411.04975), whose trees take the place of the index here.

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

    min_token_prob: Annotated[
        float, Field(ge=0, le=1, description="chance of being kept, below which a proposal ends")
    ] = 0.1
    earlier: Annotated[
        int, Field(ge=0, le=10_000_000, description="earlier answers that are looked through too"), Setting("tokens")
    ] = 0
    _answers: Answers = field(default_factory=Answers, init=False, repr=False, compare=False)

    name: ClassVar[str] = "suffix"

    def __post_init__(self) -> None:
        check_fields(self)

    def begin_response(self, target: Any, length: DraftLength) -> None:
        """Remember the last answer, as far as a step followed it, if earlier ones count."""
        super().begin_response(target, length)
        answer = self._response.index.token_ids[self._answers.prompt_length :]
        if self.earlier and self._answers.prompt_length and answer:
            self._answers.keep(answer, self.earlier)
        self._answers.prompt_length = 0

    def follow(self, token_ids: list[int]) -> None:
        """Read a text, which usually goes on from the last one."""
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
