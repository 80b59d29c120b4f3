"""An order of sequences in which those of one step are of similar length, so that little is padded."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from torch.utils.data import Sampler

_CHUNK = 16
"""Steps whose sequences are sorted together."""


class LengthGroups(Sampler[int]):
    """Yields places of sequences in an order of its own for each epoch, a pure function of the seed.

    Sequences are drawn without regard to their lengths in chunks of several steps, sorted inside a chunk, and the steps
    of a chunk are shuffled; so every sequence comes once an epoch, and short and long steps alternate.
    A step takes ``step`` sequences, those of all batches and processes.

    Example:
        >>> [sorted(LengthGroups([9, 1, 8, 2], 2, seed=0))]
        [[0, 1, 2, 3]]
    """

    def __init__(self, lengths: Sequence[int], step: int, seed: int) -> None:
        self._lengths, self._step, self._seed, self._epoch = lengths, step, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of another epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self._seed} {self._epoch}")
        order = list(range(len(self._lengths)))
        rng.shuffle(order)
        for start in range(0, len(order), self._step * _CHUNK):
            chunk = sorted(order[start : start + self._step * _CHUNK], key=self._lengths.__getitem__)
            steps = [chunk[i : i + self._step] for i in range(0, len(chunk), self._step)]
            last = [] if len(steps[-1]) == self._step else steps.pop()  # an incomplete step would shift those after it
            rng.shuffle(steps)
            yield from (place for step in [*steps, last] for place in step)
