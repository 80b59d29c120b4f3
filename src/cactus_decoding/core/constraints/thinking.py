"""Responses that begin with a thinking part: where it ends, how long it may be, and what is constrained after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cactus_decoding.core.checks import check_integer
from cactus_decoding.core.constraints.base import Constraint

MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Around the thinking part, as chat templates write them."""
_LINES = 2  # tokens of line breaks that may stand between the thinking part and a constrained answer


class Thinking(NamedTuple):
    opening: int  # the token that opens it
    closing: int  # the token that ends it
    # whether the prompt has ``opened`` it, has ``closed`` it already, or the model ``may`` open it first
    begins: Literal["opened", "closed", "may"]
    lines: frozenset[int] = frozenset()  # tokens that are line breaks

    @classmethod
    def of(cls, tokenizer: Any, prompt_ids: Sequence[int]) -> Thinking | None:
        """Return what a model's chat template says of thinking; None where it knows none, or its marks are no tokens.

        A prompt opens or closes the part where a mark is the last of it, line breaks aside: what a user quotes in the
        middle of a conversation opens nothing.
        """
        marks = thinking_marks(tokenizer)
        if marks is None:
            return None
        opening, closing = marks
        breaks = (_ids(tokenizer, text) for text in ("\n", "\n\n"))
        lines = frozenset(ids[0] for ids in breaks if len(ids) == 1)
        last = next((token for token in reversed(prompt_ids) if token not in lines), None)
        begins: Literal["opened", "closed", "may"] = "may"
        if last in marks:
            begins = "opened" if last == opening else "closed"
        return cls(opening, closing, begins, lines)

    def answer_start(self, token_ids: Sequence[int]) -> int | None:
        """Return where the answer begins in a response; None while it thinks."""
        if self.begins == "closed" or (self.begins == "may" and (not token_ids or token_ids[0] != self.opening)):
            return 0
        return token_ids.index(self.closing) + 1 if self.closing in token_ids else None

    def thought(self, token_ids: Sequence[int]) -> Sequence[int]:
        start, end = int(self.begins == "may"), self.answer_start(token_ids)
        return token_ids[start:] if end is None else token_ids[start : end - 1] if end else []


class ThinkingFirst:
    """Lets a response think before a constraint begins; a `Constraint`.

    While it thinks, every token may come but those that end the response, if an answer is owed. After ``budget`` tokens
    only the closing mark may. After the mark, up to two tokens of line breaks may come before what the constraint
    allows.

    Args:
        budget: tokens that the thinking part may have; None for as many as there is room for.
    """

    def __init__(
        self, thinking: Thinking, constraint: Constraint | None, budget: int | None, size: int, ends: Sequence[int]
    ) -> None:
        self._thinking, self._constraint = thinking, constraint
        self._budget = None if budget is None else check_integer("thinking_budget", budget, 0)
        self._free = torch.ones(size, dtype=torch.bool)
        if constraint is not None:
            self._free[[token for token in ends if token < size]] = False
        self._closing, self._opening = (_one_of(size, [token]) for token in (thinking.closing, thinking.opening))
        self._lines = _one_of(size, sorted(thinking.lines))

    def allowed(self, token_ids: Sequence[int]) -> Tensor | None:
        thinking, tokens = self._thinking, list(token_ids)
        start = thinking.answer_start(tokens)
        if start is None:
            return self._closing if self._is_spent(tokens) else self._free
        rest, num_lines = self._answer(tokens, start)
        mask = None if self._constraint is None else self._constraint.allowed(rest)
        if not tokens and thinking.begins == "may":  # it may open the part, or answer at once
            everything = torch.ones_like(self._free) if mask is None else mask
            return everything & ~self._opening if self._budget == 0 else everything | self._opening
        if mask is not None and not rest and start and num_lines < _LINES:
            return mask | self._lines
        return mask

    def forced(self, token_ids: Sequence[int], limit: int) -> list[int]:
        tokens = list(token_ids)
        start = self._thinking.answer_start(tokens)
        if start is None:
            return [self._thinking.closing][:limit] if self._is_spent(tokens) else []
        rest, num_lines = self._answer(tokens, start)
        open_ = (not tokens and self._thinking.begins == "may") or (not rest and start and num_lines < _LINES)
        return [] if open_ or self._constraint is None else self._constraint.forced(rest, limit)

    def may_end(self, token_ids: Sequence[int]) -> bool:
        tokens = list(token_ids)
        start = self._thinking.answer_start(tokens)
        if start is None or self._constraint is None:
            return self._constraint is None
        return self._constraint.may_end(self._answer(tokens, start)[0])

    def _is_spent(self, token_ids: Sequence[int]) -> bool:
        return self._budget is not None and len(self._thinking.thought(token_ids)) >= self._budget

    def _answer(self, token_ids: list[int], start: int) -> tuple[list[int], int]:
        """Return the tokens of the answer, and how many line breaks stand before them and after the mark."""
        rest, count = token_ids[start:], 0
        if start and self._constraint is not None:
            while count < min(_LINES, len(rest)) and rest[count] in self._thinking.lines:
                count += 1
            if count and (mask := self._constraint.allowed([])) is not None and mask[rest[0]]:
                count = 0  # the constraint's own
        return rest[count:], count


def thinking_marks(tokenizer: Any) -> tuple[int, int] | None:
    """Return the tokens around a thinking part that a model's chat template knows; None where there are none."""
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return None
    for marks in MARKS:
        if marks[1] in template:
            opening, closing = (_ids(tokenizer, mark) for mark in marks)
            if len(opening) == len(closing) == 1:
                return opening[0], closing[0]
    return None


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def _one_of(size: int, token_ids: Sequence[int]) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[list(token_ids)] = True
    return mask
