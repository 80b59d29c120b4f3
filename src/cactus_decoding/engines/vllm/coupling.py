"""One text per seed in the V1 runner: noise by seed and place says which token the target draws, whatever is proposed.

The sampler is left as it is. A row on which only the chosen token is possible makes it keep, recover or draw that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.core.sampling.noise import SharedNoise


@dataclass(frozen=True, eq=False)
class CoupledRequest:
    noise: SharedNoise
    prompt_length: int
    output_ids: list[int]  # to which the engine appends
    top_k: int  # 0: all tokens
    top_p: float

    @classmethod
    def of(cls, params: Any, prompt_ids: Sequence[int] | None, output_ids: list[int]) -> CoupledRequest:
        return cls(SharedNoise(params.seed), len(prompt_ids or ()), output_ids, max(0, params.top_k), params.top_p)

    def token(self, row: Tensor, further: int = 0) -> int:
        """Return the token of a row of truncated logits, ``further`` places after the next one."""
        place = self.prompt_length + len(self.output_ids) + further  # as in `Verifier`
        return self.noise.token(row.double().softmax(-1), place)

    def truncated(self, row: Tensor) -> Tensor:
        """Return a row of logits as vLLM truncates it, in memory of its own."""
        from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

        top_k = torch.tensor([self.top_k], device=row.device) if 0 < self.top_k < len(row) else None
        top_p = torch.tensor([self.top_p], device=row.device) if self.top_p < 1 else None
        truncated: Tensor = apply_top_k_top_p(row[None].clone(), top_k, top_p)
        return truncated[0]


class CoupledBatch:
    """The coupled requests by their index in the batch."""

    def __init__(self) -> None:
        self.requests: dict[int, CoupledRequest] = {}
        self._after: dict[int, Tensor] = {}  # of each request, the row after all of its proposals

    def draw(self, logits: Tensor) -> None:
        """Leave one token possible in the rows of coupled requests, ``[requests, vocabulary]``.

        vLLM samples one row of each request in this way: the next one where nothing is proposed, else the one after
        the proposals, which `verification` draws anew, as only then their number is known.
        """
        self._after = {}
        for index, request in self.requests.items():
            if index < len(logits):
                row = request.truncated(logits[index])
                self._after[index] = row
                only(logits[index], request.token(row))

    @contextmanager
    def verification(
        self, logits: Tensor, draft_token_ids: Tensor, counts: Sequence[int], bonus_token_ids: Tensor
    ) -> Iterator[Tensor]:
        """Leave one token possible at proposals of coupled requests, and restore the rows; yield the bonus tokens.

        ``logits`` are those of all proposals, truncated, ``[proposals, vocabulary]``; ``counts`` how many each request
        has. Rows after the first proposal that is not the target's token have no effect.
        """
        if not self.requests:  # nor does anything wait for the device
            yield bonus_token_ids
            return
        undo: list[tuple[Tensor, Tensor]] = []
        first, drafted, drawn = 0, draft_token_ids.tolist(), bonus_token_ids.clone()
        for index, count in enumerate(counts):
            if (request := self.requests.get(index)) is not None and index in self._after:
                for place in range(count):
                    row = logits[first + place]
                    token = request.token(row, place)
                    undo.append((row, row.clone()))
                    only(row, token)
                    if token != drafted[first + place]:
                        break
                else:
                    drawn[index] = request.token(self._after[index], count)
            first += count
        try:
            yield drawn if undo else bonus_token_ids
        finally:
            for row, before in undo:
                row.copy_(before)


def only(row: Tensor, token: int) -> None:
    """Make one token certain in a row of logits; leave the row if there is none, as where it holds NaN."""
    if token < len(row):
        row.fill_(-math.inf)
        row[token] = 0.0
