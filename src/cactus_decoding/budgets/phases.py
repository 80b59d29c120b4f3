"""Phases of a response: what the tokens before a position say about whether it may be relaxed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cactus_decoding.budgets.vocabulary import Vocabulary

Mark = str | tuple[int, ...]
"""A text, or the ids of tokens that follow each other."""


class PhaseState(NamedTuple):
    """What a position needs to know of the tokens before it.

    Attributes:
        num_emitted: tokens of the response so far.
        inside: whether the last mark was an opening one.
        tail: the end of the text, in which a mark may have begun.
    """

    num_emitted: int = 0
    inside: bool = False
    tail: str = ""


@dataclass(frozen=True)
class Phases:
    """Where in a response a rule may relax; elsewhere positions are judged losslessly.

    Attributes:
        lossless_tokens: this many tokens at the beginning of a response are lossless, 0 or more.
        relax_within: an opening and a closing mark, such as ``("<think>", "</think>")``: only what stands between them
            is relaxed. The prompt counts, as chat templates may open a span there. Texts are found in the text, so they
            may be spread over several tokens; token ids are found among the tokens, so that a text that quotes the mark
            opens nothing. None relaxes everywhere.

    Example:
        >>> words = Vocabulary(("<", "t>", "</", "x"))
        >>> phases = Phases(relax_within=("<t>", "</t>"))
        >>> phases.relaxable(phases.begin([], words), [0, 1, 3, 2, 1, 3], words)
        [False, False, True, True, True, False]
    """

    lossless_tokens: int = 0
    relax_within: tuple[Mark, Mark] | None = None

    @property
    def reads_text(self) -> bool:
        """Whether it matters what the tokens say."""
        return self.relax_within is not None and isinstance(self.relax_within[0], str)

    def begin(self, prompt_ids: Sequence[int], vocabulary: Vocabulary) -> PhaseState:
        """Return the state behind a prompt."""
        return self.after(PhaseState(), prompt_ids, vocabulary)._replace(num_emitted=0)

    def after(self, state: PhaseState, token_ids: Sequence[int], vocabulary: Vocabulary) -> PhaseState:
        """Return the state behind further tokens."""
        num_emitted, inside, tail = state
        for token in token_ids:
            num_emitted += 1
            if self.relax_within is None:
                continue
            opening, closing = map(as_text, self.relax_within)
            tail += vocabulary.texts[token] if self.reads_text else as_text((token,))
            opened, closed = tail.rfind(opening), tail.rfind(closing)
            if max(opened, closed) >= 0:
                inside = opened > closed
                tail = tail[max(opened, closed) + len(opening if inside else closing) :]
            tail = tail[-max(len(opening), len(closing)) :]
        return PhaseState(num_emitted, inside, tail)

    def relaxable(self, state: PhaseState, token_ids: Sequence[int], vocabulary: Vocabulary) -> list[bool]:
        """Say of each of some tokens that follow a state whether the position it stands at may be relaxed."""
        allowed = []
        for token in token_ids:
            allowed.append(state.num_emitted >= self.lossless_tokens and (self.relax_within is None or state.inside))
            state = self.after(state, [token], vocabulary)
        return allowed


def as_text(mark: Mark) -> str:
    """Return a mark as a text to look for: tokens are spelled with one letter each, and unknown ones with none.

    Example:
        >>> as_text("<t>"), as_text((97, -1, 98))
        ('<t>', 'ab')
    """
    return mark if isinstance(mark, str) else "".join(chr(token) for token in mark if token >= 0)
