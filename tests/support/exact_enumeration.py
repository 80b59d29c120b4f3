"""A second, independent way to what a rule emits: enumerate every drafted token. O(V^2) a row, float64."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.core.types import AcceptanceRule

Law = dict[tuple[int, ...], float]


def enumerate_tokens(rule: AcceptanceRule, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return the emitted distributions and each token's P(drafted and accepted), both ``[rows, vocabulary]``.

    Every drafted token has its turn, by the definition of draft-and-verify: none of the package's sorts and look-ups.
    """
    kept, recovery = fates(rule, target, draft)
    accepted = draft * kept
    output = accepted + ((draft * (1 - kept)).unsqueeze(-1) * recovery).sum(1)
    return output, accepted


def fates(rule: AcceptanceRule, target: Tensor, draft: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each token n as the drafted one, P(accept) and the law of recovery.

    ``[rows, vocabulary (n)]`` and ``[rows, vocabulary (n), vocabulary]``. The rule is asked about one token at a time,
    as `verify` does.
    """
    rows, vocabulary = target.shape
    target, draft = (x.repeat_interleave(vocabulary, 0) for x in (target, draft))
    drafted = torch.arange(vocabulary).repeat(rows).unsqueeze(1)
    verdict = rule.judge(target, draft, drafted)
    relaxed_prob, scale = verdict.relaxed_prob, verdict.residual_scale
    draft_prob = draft.gather(1, drafted)
    kept = torch.where(draft_prob > 0, relaxed_prob / draft_prob, 1.0).clamp(max=1)
    start = verdict.recovers_from(target).double()
    weights = torch.where(scale.isinf(), start, (scale * start - draft).clamp(min=0))
    weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, start)
    recovery = weights / weights.sum(-1, keepdim=True)
    return kept.reshape(rows, vocabulary), recovery.reshape(rows, vocabulary, vocabulary)


def make_rows(vocabulary: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return pairs (target, draft) of rows ``[count, vocabulary]``, from flat to nearly one-hot, some with zeros."""
    generator = torch.Generator().manual_seed(seed)

    def rows() -> Tensor:
        sharpness = torch.rand(count, 1, generator=generator, dtype=torch.float64) * 8
        logits = torch.randn(count, vocabulary, generator=generator, dtype=torch.float64) * sharpness
        # a third of the rows lose about half of their tokens, as top-k and top-p do
        cut = torch.rand(count, vocabulary, generator=generator) < 0.5
        cut &= torch.rand(count, 1, generator=generator) < 1 / 3
        cut[torch.arange(count), logits.argmax(-1)] = False
        return logits.masked_fill(cut, -torch.inf).softmax(-1)

    return rows(), rows()


def hand_made_rows() -> tuple[Tensor, Tensor]:
    """Return pairs (target, draft), ``[pairs, 4]``, at the limits where formulas divide by zero, cancel or tie."""
    tiny = 1e-12
    flat, steep = [0.25] * 4, [0.7, 0.2, 0.1, 0.0]
    pairs = [
        (flat, flat),
        (steep, steep),
        (flat, steep),
        (steep, flat),
        ([0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 0.0, 0.0]),  # disjoint supports
        ([0.0, 0.4, 0.6, 0.0], [0.3, 0.3, 0.2, 0.2]),  # drafted tokens that the target excludes
        ([1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]),
        ([1.0, 0.0, 0.0, 0.0], flat),
        (flat, [0.0, 1.0, 0.0, 0.0]),
        ([1 - 3 * tiny, tiny, tiny, tiny], flat),
        (flat, [1 - 3 * tiny, tiny, tiny, tiny]),
        ([1 - 3 * tiny, tiny, tiny, tiny], [tiny, 1 - 3 * tiny, tiny, tiny]),
        ([1 - 3 * tiny, tiny, tiny, tiny], [1 - 4 * tiny, 2 * tiny, tiny, tiny]),
        ([0.5, 0.5, 0.0, 0.0], [0.5, 0.5 - 1e-16, 0.0, 1e-16]),  # equal up to rounding
        ([0.5, 0.5, 1e-40, 0.0], [0.2, 0.2, 0.6, 0.0]),  # as small as float32 gets
        ([0.5, 0.5, 1e-310, 0.0], [0.2, 0.2, 0.6, 0.0]),  # subnormal: draft over target overflows
        ([0.5, 0.5, 1e-300, 0.0], [0.2, 0.2, 1e-310, 0.6]),
        ([0.4, 0.3, 0.2, 0.1], [0.8, 0.15, 0.1 / 3, 0.05 / 3]),
    ]
    rows = torch.tensor(pairs, dtype=torch.float64)
    return rows[:, 0], rows[:, 1]


def paired_rows() -> list[tuple[Tensor, Tensor]]:
    """Return the hand-made pairs joined by random ones, and pairs over a larger vocabulary."""
    (target, draft), (more_target, more_draft) = hand_made_rows(), make_rows(4, 60, seed=0)
    return [(torch.cat([target, more_target]), torch.cat([draft, more_draft])), make_rows(7, 60, seed=1)]
