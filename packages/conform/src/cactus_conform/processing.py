"""From logits to the distribution that tokens are to be drawn from, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cactus_conform.engine import CLEARANCE, LETTERS, Sampling

Rows = NDArray[np.float64]


class ProcessedRows(NamedTuple):
    probs: Rows  # ``[rows, vocabulary]``
    clear: NDArray[np.bool_]  # whether no cut depends on rounding, ``[rows]``


def softmax(logits: Rows) -> Rows:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def distribution(
    logits: Rows, sampling: Sampling, *, temperature_last: bool = False, min_p_of_all: bool = False
) -> ProcessedRows:
    """Apply temperature, top-k, top-p and min-p to logits, ``[rows, vocabulary]``, in this order.

    With ``temperature_last`` the cuts are made at temperature 1. With ``min_p_of_all`` min-p is, by a common mistake,
    compared with probabilities themselves. Penalties and biases are already in the logits.
    """
    clear = np.ones(len(logits), bool)
    if sampling.temperature == 0:
        following, best = np.sort(logits, -1)[:, -2:].T
        return ProcessedRows(np.eye(logits.shape[-1])[logits.argmax(-1)], best - following > CLEARANCE)
    scaled = logits if temperature_last else logits / sampling.temperature
    kept = np.ones(logits.shape, bool)
    order = np.argsort(-scaled, -1, kind="stable")
    ranks = np.argsort(order, -1, kind="stable")
    if 0 < sampling.top_k < logits.shape[-1]:
        descending = np.take_along_axis(scaled, order, -1)
        clear &= descending[:, sampling.top_k - 1] - descending[:, sampling.top_k] > CLEARANCE
        kept &= ranks < sampling.top_k
    if sampling.top_p < 1:
        probs = softmax(np.where(kept, scaled, -np.inf))
        sums = np.take_along_axis(probs, order, -1).cumsum(-1)
        clear &= (np.abs(sums - sampling.top_p) > CLEARANCE).all(-1)
        before = np.take_along_axis(np.concatenate([np.zeros((len(sums), 1)), sums[:, :-1]], -1), ranks, -1)
        kept &= before < sampling.top_p
    if sampling.min_p > 0:
        ratios = np.exp(scaled - scaled.max(-1, keepdims=True))
        clear &= (np.abs(ratios - sampling.min_p) > CLEARANCE).all(-1)
        likely = softmax(scaled) >= sampling.min_p if min_p_of_all else ratios >= sampling.min_p
        kept &= likely | (ratios == 1)
    final = scaled / sampling.temperature if temperature_last else scaled
    return ProcessedRows(softmax(np.where(kept, final, -np.inf)), clear)


def counts_before(sequence: list[int], start: int, vocabulary: int) -> Rows:
    """Count each token before each place from the prompt's end on, ``[tokens + 1, vocabulary]``."""
    one_hot = np.eye(vocabulary)[sequence]
    return np.concatenate([one_hot[:start].sum(0)[None], one_hot[start:]]).cumsum(0)


def penalised(
    logits: Rows, counts: Rows, prompt_counts: Rows, sampling: Sampling, *, penalises_prompt: bool = True
) -> Rows:
    """Apply penalties, biases and the grammar to logits, ``[rows, vocabulary]``.

    ``counts`` are of the tokens before each row, including the prompt, ``prompt_counts`` of the prompt alone.
    """
    result = logits.copy()
    for token, bias in sampling.logit_bias:
        result[:, token] += bias
    if sampling.letters:
        result[:, [LETTERS.index(each) + 1 for each in LETTERS if each not in sampling.letters]] = -np.inf
    output = counts - prompt_counts
    if sampling.repetition_penalty != 1:
        lower = np.where(result > 0, result / sampling.repetition_penalty, result * sampling.repetition_penalty)
        result = np.where((counts if penalises_prompt else output) > 0, lower, result)
    return np.asarray(result - sampling.frequency_penalty * output - sampling.presence_penalty * (output > 0))
