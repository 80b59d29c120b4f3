"""Expected tokens per step along texts, from the chance that each position's proposal is kept."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.evaluation.expected import laid_out


def steps_taken(chances: Tensor, problem: Tensor, num_speculative_tokens: int) -> Tensor:
    r"""Return how many steps each problem's text is expected to take, ``[problems]``.

    A step at t proposes K tokens and goes on at t + n + 1 where n of them are kept. With :math:`\pi_t` the probability
    that a step begins at t,

    .. math:: \pi_{t+n+1} \mathrel{+}= \pi_t \prod_{i<n} a_{t+i}\,(1 - a_{t+n}\,[n < K])

    and the sum of all :math:`\pi_t` is the answer. Chances are taken as independent of one another, along the text as
    it stands: an estimate, whose mean the lossless run's own steps can be compared with.

    Args:
        chances: that a proposal for a position is kept, ``[positions]``.
        problem: which text a position belongs to, ascending from 0, ``[positions]``.
        num_speculative_tokens: K, at least 0.

    Example:
        >>> steps_taken(torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 0]), 3).tolist()
        [1.0]
        >>> steps_taken(torch.tensor([0.5, 0.5]), torch.tensor([0, 0]), 1).tolist()
        [1.5]
    """
    texts, k = int(problem[-1]) + 1, num_speculative_tokens
    lengths = torch.bincount(problem, minlength=texts)
    longest, rows = int(lengths.max()), laid_out(chances, problem, texts, k + 1)
    begins = torch.zeros_like(rows)
    begins[:, 0] = 1.0
    for t in range(longest):
        ahead = rows[:, t : t + k]
        reached = torch.cat([torch.ones(texts, 1, dtype=torch.float64), ahead.cumprod(-1)], -1)
        stops = reached.clone()
        stops[:, :k] *= 1 - ahead
        begins[:, t + 1 : t + k + 2] += begins[:, t : t + 1] * stops
    return (begins[:, :longest] * (torch.arange(longest) < lengths[:, None])).sum(-1)


def steps_of_texts(chances: Tensor, mask: Tensor, num_speculative_tokens: int) -> Tensor:
    """Return how many steps each text of a batch is expected to take, ``[texts]`` in float64 on the CPU.

    Args:
        chances: that a proposal for a counted position is kept, ``[positions]``.
        mask: where these stand, ``[texts, length]``.
        num_speculative_tokens: proposals per step.

    Example:
        >>> mask = torch.tensor([[True, True], [False, True], [False, False]])
        >>> steps_of_texts(torch.tensor([0.5, 0.5, 0.5]), mask, 1).tolist()
        [1.5, 1.0, 0.0]
    """
    mask, found = mask.cpu(), torch.zeros(len(mask), dtype=torch.float64)
    if mask.any():
        steps = steps_taken(chances.detach().cpu(), mask.nonzero()[:, 0], num_speculative_tokens)
        found[: len(steps)] = steps
    return found
