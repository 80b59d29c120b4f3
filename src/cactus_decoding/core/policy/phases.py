"""Phases of a response: whether a position may be relaxed, given the tokens before it."""

from __future__ import annotations

import sys
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import PlainSerializer, PlainValidator

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.declared import Model, Setting

if TYPE_CHECKING:
    from cactus_decoding.core.policy.vocabulary import Vocabulary

Mark = str | tuple[int, ...]  # a text, or the ids of tokens that follow each other
MAX_MARK = 64  # characters or tokens of a mark in a request, as it is looked for after every token


class PhaseState(NamedTuple):
    num_emitted: int = 0
    inside: bool = False  # whether a span is open
    tail: str = ""  # text after the last mark in which the next may begin, spelled as `as_text` spells marks


def as_text(mark: Mark) -> str:
    """Return a mark as a text to look for, with one letter for each byte or token; unknown tokens (-1) are left out."""
    if isinstance(mark, str):
        return mark.encode(errors="surrogatepass").decode("latin-1")
    return "".join(chr(token) for token in mark if token >= 0)


def _marks(given: Sequence[str] | Sequence[int] | Sequence[Sequence[int]] | None) -> tuple[Mark, Mark] | None:
    if given is None:
        return None
    wrong = (
        "relax_within must be two different texts, an opening and a closing mark, or two token ids or lists of these, "
        f"but is {short_repr(given)}"
    )
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(wrong)
    marks = [mark if isinstance(mark, str) else _token_ids(mark, wrong) for mark in given]
    if len({isinstance(mark, str) for mark in marks}) > 1:
        raise TypeError(wrong)
    if len(marks) != 2 or not all(marks) or marks[0] == marks[1]:
        raise ValueError(wrong)
    opening, closing = map(as_text, marks)
    if opening in closing or closing in opening:
        raise ValueError(
            f"relax_within must be two marks of which neither has the other in it, but is {short_repr(given)}: a span "
            "would open or close at the wrong one"
        )
    return marks[0], marks[1]


def _token_ids(given: object, wrong: str) -> tuple[int, ...]:
    ids = (given,) if isinstance(given, int) else given
    if not isinstance(ids, Sequence) or any(not isinstance(token, int) or isinstance(token, bool) for token in ids):
        raise TypeError(wrong)
    if not all(0 <= token <= sys.maxunicode for token in ids):
        raise ValueError(wrong)
    return tuple(ids)


def marks_of_client(given: Any) -> Any:
    """Check the lengths of a request's marks; whether they are marks at all is checked elsewhere."""
    if isinstance(given, list | tuple) and any(isinstance(mark, Sized) and len(mark) > MAX_MARK for mark in given):
        raise ValueError(
            f"relax_within must be two marks of at most {MAX_MARK} characters or tokens, but is {short_repr(given)}"
        )
    return given


def _written(marks: tuple[Mark, Mark] | None) -> list[str | int | list[int]] | None:
    return None if marks is None else [_plain(mark) for mark in marks]


def _plain(mark: Mark) -> str | int | list[int]:
    if isinstance(mark, str):
        return mark
    return mark[0] if len(mark) == 1 else list(mark)


class Phases(Model):
    """Where in a response a rule may relax; elsewhere positions are judged losslessly.

    With two marks, such as ``("<think>", "</think>")``, it may relax between them only, read from left to right: from
    the first opening mark to the first closing one after it, and so on. The prompt counts, as chat templates may open a
    span there. Texts are searched for in the bytes of the text, however tokens split these, even within a character.
    Token ids are searched for among the tokens, so that a text that quotes the mark opens nothing.
    """

    lossless_tokens: Annotated[
        int, Setting("The first N tokens of an answer are lossless.", "tokens", ge=0, from_clients=True)
    ] = 0
    relax_within: Annotated[
        tuple[Mark, Mark] | None,
        PlainValidator(_marks),
        PlainSerializer(_written),
        Setting(
            "Relax only between these marks, such as '<think>' '</think>'.",
            metavar="OPEN CLOSE",
            from_clients=marks_of_client,
        ),
    ] = None

    @property
    def plain_marks(self) -> list[str | int | list[int]] | None:
        return _written(self.relax_within)

    @property
    def reads_text(self) -> bool:
        """Whether the marks are texts, so that the tokens' texts must be known."""
        return self.relax_within is not None and isinstance(self.relax_within[0], str)

    def begin(self, prompt_ids: Sequence[int], vocabulary: Vocabulary) -> PhaseState:
        return self.after(PhaseState(), prompt_ids, vocabulary)._replace(num_emitted=0)

    def after(self, state: PhaseState, token_ids: Sequence[int], vocabulary: Vocabulary) -> PhaseState:
        num_emitted, inside, tail = state
        num_emitted += len(token_ids)
        if self.relax_within is not None:
            marks = [as_text(mark) for mark in self.relax_within]
            if self.reads_text:
                tail += b"".join(map(vocabulary.bytes_of, token_ids)).decode("latin-1")
            else:
                tail += as_text(tuple(token_ids))
            while (found := tail.find(marks[inside])) >= 0:
                tail, inside = tail[found + len(marks[inside]) :], not inside
            tail = tail[max(0, len(tail) + 1 - len(marks[inside])) :]
        return PhaseState(num_emitted, inside, tail)

    def relaxable(self, state: PhaseState, token_ids: Sequence[int], vocabulary: Vocabulary) -> list[bool]:
        """Return, for each of some tokens that follow a state, whether the position it stands at may be relaxed."""
        allowed = []
        for token in token_ids:
            allowed.append(self.relaxes(state))
            state = self.after(state, [token], vocabulary)
        return allowed

    def relaxes(self, state: PhaseState) -> bool:
        return state.num_emitted >= self.lossless_tokens and (self.relax_within is None or state.inside)
