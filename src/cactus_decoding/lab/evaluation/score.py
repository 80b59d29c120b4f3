"""How many word problems were answered right, and the expected tokens and steps of speculation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.evaluation.intervals import proportion
from cactus_decoding.zoo.word_problems import WordProblem, extract_answer

if TYPE_CHECKING:
    from cactus_decoding.core.generate import Response


@dataclass
class Score:
    right: int = 0
    answers: int = 0
    metrics: Metrics = field(default_factory=Metrics)

    def add(self, problem: WordProblem, response: Response) -> None:
        self.right += extract_answer(response.text) == problem.answer
        self.answers += 1
        self.metrics += response.metrics

    @property
    def accuracy(self) -> float:
        return self.right / self.answers if self.answers else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        if not self.answers:
            return 0.0, 1.0
        _, low, high = proportion(self.right, self.answers)
        return low, high

    @property
    def seconds_per_answer(self) -> float:
        return self.metrics.seconds / self.answers if self.answers else math.nan

    def as_dict(self) -> dict[str, object]:
        return {
            "right": self.right,
            "answers": self.answers,
            "accuracy": self.accuracy,
            "accuracy_interval": list(self.interval),
            "seconds_per_answer": self.seconds_per_answer,
            "metrics": self.metrics.as_dict(),
        }


def expected_kept(chances: Tensor) -> Tensor:
    r"""Return how many of a step's first 1, 2, … proposals are expected to be kept, of chances ``[..., proposals]``.

    .. math:: \sum_{j \le k} \prod_{i \le j} a_i

    The step brings one token more.

    Example:
        >>> expected_kept(torch.tensor([0.5, 0.5])).tolist()
        [0.5, 0.75]
    """
    return chances.cumprod(-1).cumsum(-1)


def pad_groups(values: Tensor, group: Tensor, groups: int, width: int = 0) -> Tensor:
    """Return one row for each group of values, ``[groups, longest + width]``, padded with zeros; groups ascend.

    Example:
        >>> pad_groups(torch.tensor([0.5, 0.25, 1.0]), torch.tensor([0, 0, 1]), 2).tolist()
        [[0.5, 0.25], [1.0, 0.0]]
    """
    counts = torch.bincount(group.long(), minlength=groups)
    place = torch.arange(len(group)) - (counts.cumsum(0) - counts)[group]
    rows = torch.zeros(groups, (int(counts.max()) if groups else 0) + width, dtype=torch.float64)
    rows[group, place] = values.double()
    return rows


def expected_tokens(accepted: Tensor, step: Tensor, ends: Tensor) -> Tensor:
    r"""Return the expected tokens of each step, given what was drafted, for 1, 2, … proposals, ``[steps, proposals]``.

    .. math:: 1 + \sum_{j \le k} \prod_{i \le j} a_i

    minus the last token where an accepted proposal ends the response. Only the proposals were drawn: the acceptance
    tests are averaged over.

    ``accepted`` is each proposal's chance of acceptance and ``step`` its step, ascending, both ``[proposals]``;
    ``ends`` says whether a step's last proposal would end the response, ``[steps]``.
    """
    chances = pad_groups(accepted, step, len(ends))  # 0 after the step's last proposal
    counts = torch.bincount(step.long(), minlength=len(ends))
    if not chances.shape[1]:  # no step proposes anything
        return torch.ones(len(ends), 1, dtype=torch.float64)
    last = (counts - 1).clamp(min=0).unsqueeze(1)
    over = ends.unsqueeze(1) & (torch.arange(chances.shape[1]) >= last) & (counts > 0).unsqueeze(1)
    return 1 + expected_kept(chances) - torch.where(over, chances.cumprod(-1).gather(1, last), 0.0)


def steps_taken(chances: Tensor, problem: Tensor, num_speculative_tokens: int) -> Tensor:
    r"""Return how many steps each problem's text is expected to take, ``[problems]``.

    A step at t proposes K tokens and goes on at t + n + 1 if n of them are kept. With :math:`\pi_t` the probability
    that a step begins at t,

    .. math:: \pi_{t+n+1} \mathrel{+}= \pi_t \prod_{i<n} a_{t+i}\,(1 - a_{t+n}\,[n < K])

    and the sum of all :math:`\pi_t` is the answer. It is an estimate, because chances are taken as independent of one
    another along the given text.

    ``chances`` are ``[positions]``, and ``problem`` says which text each belongs to, ascending from 0.
    """
    texts, k = int(problem[-1]) + 1, num_speculative_tokens
    lengths = torch.bincount(problem, minlength=texts)
    longest, rows = int(lengths.max()), pad_groups(chances, problem, texts, k + 1)
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

    ``chances`` are those of the positions where the mask, ``[texts, length]``, is true.

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
