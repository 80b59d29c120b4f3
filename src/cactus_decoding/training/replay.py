"""Responses that a draft learns from while it serves, and which of them a step sees."""

from __future__ import annotations

import random
from collections import deque
from typing import NamedTuple

from torch import Tensor

from cactus_decoding.training.acceptance.data import TokenSequence


class Text(NamedTuple):
    """A response to learn from.

    Attributes:
        sequence: tokens of prompt and response.
        top_ids: the target's likeliest tokens at each of the response's tokens, ``[response, top]``.
        top_log_probs: the logarithms of their probabilities at temperature 1.
    """

    sequence: TokenSequence
    top_ids: Tensor
    top_log_probs: Tensor

    def cut(self, positions: int) -> Text:
        """Return a text of at most so many tokens, 2 or more.

        Left out are the response's end, down to half of the positions, and then the prompt's beginning: the rows that
        are learned were computed after all that stands before them.

        Example:
            >>> import torch
            >>> Text(TokenSequence([1, 2, 3, 4, 5, 6], 3), torch.ones(3, 1), torch.ones(3, 1)).cut(4).sequence
            TokenSequence(token_ids=[2, 3, 4, 5], prompt_length=2)
        """
        (token_ids, prompt), ids, log_probs = self
        kept = min(len(token_ids) - prompt, max(positions - prompt, positions // 2))
        start = max(prompt + kept - positions, 0)
        return Text(TokenSequence(token_ids[start : prompt + kept], prompt - start), ids[:kept], log_probs[:kept])


class Replay:
    """The latest responses.

    A step sees at most ``batch`` of the ``size`` texts that are remembered, with at most ``positions`` rows, padding
    included: texts times the longest one's tokens.
    """

    def __init__(self, size: int, batch: int, positions: int, seed: int) -> None:
        self.texts: deque[Text] = deque(maxlen=size)
        self._batch, self._positions, self._random = batch, positions, random.Random(seed)

    def add(self, text: Text, window: int | None) -> None:
        """Remember a text, cut where it alone has more positions than there is room for, or the draft's window has."""
        self.texts.append(text.cut(self._positions if window is None else min(self._positions, window)))

    def choose(self, tokens: float | None) -> list[Text]:
        """Return the latest text and others drawn from the earlier ones: as many as have so many tokens, and room.

        None stands for a number that nobody knows: the latest one alone.
        """
        earlier = list(self.texts)[:-1]
        order = [self.texts[-1], *self._random.sample(earlier, min(len(earlier), self._batch - 1))]
        if tokens is None:
            return order[:1]
        chosen: list[Text] = []
        longest = 0
        for each in order:
            length = len(each.sequence.token_ids)
            tokens, longest = tokens - length, max(longest, length)
            if tokens < 0 or (len(chosen) + 1) * longest > self._positions:
                break
            chosen.append(each)
        return chosen
