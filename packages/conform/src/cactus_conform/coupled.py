r"""Engines in which seed and place alone decide a token: which one it must be, and how near to it another one is.

Such an engine draws the token :math:`\arg\min_i E_i / q_i`, where q is the target's distribution and E_i are
exponential numbers with rate 1 that depend on the seed, the place in the text and the token, and on nothing else. Its
text is known beforehand, so that one response finds what thousands find by statistics.

Sources: Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (SC 2011); Daliri et al., *Coupling without
communication* (arXiv 2408.07978).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cactus_conform.processing import Rows

_ROUNDS, _WORD = 10, 2**64
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four words of Philox-4x64-10 for a counter of four words and a key of two.

    Example:
        >>> [f"{word:016x}" for word in philox((0, 0, 0, 0), (0, 0))]
        ['16554d9eca36314c', 'db20fe9d672d0fdc', 'd7e772cee186176b', '7e68b68aec7ba23b']
    """
    a, b, c, d = counter
    left, right = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = second // _WORD ^ b ^ left, second % _WORD, first // _WORD ^ d ^ right, first % _WORD
        left, right = (left + _WEYL[0]) % _WORD, (right + _WEYL[1]) % _WORD
    return a, b, c, d


def arrival_times(seed: int, place: int, count: int) -> NDArray[np.float64]:
    """Return the exponential numbers of the first tokens at a place of a text, ``[count]``.

    Token i has word ``i % 4`` of the block with the counter ``(1 + i // 4, place, 0, 0)`` and the key ``(seed, 0)``; a
    uniform number is made of the word's 53 highest bits.
    """
    words = [word for block in range(-(-count // 4)) for word in philox((1 + block, place, 0, 0), (seed, 0))]
    uniforms = (np.array([word >> 11 for word in words[:count]], np.float64) + 0.5) * 2.0**-53
    times: NDArray[np.float64] = -np.log1p(-uniforms)
    return times


def expected_token(row: Rows, seed: int, place: int) -> tuple[int, NDArray[np.float64]]:
    """Return the token of a row of probabilities, and by how many nats each token's score is below that one's."""
    with np.errstate(divide="ignore"):
        scores = np.log(row) - np.log(arrival_times(seed, place, len(row)))
    best = int(scores.argmax())
    return best, scores[best] - scores
