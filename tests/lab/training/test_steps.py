"""Expected steps along a text, against an enumeration of everything that may be kept."""

from __future__ import annotations

import pytest
import torch
from support.expected_steps import expected_steps

from cactus_decoding.lab.evaluation.score import steps_taken

EXACT = 1e-12


@pytest.mark.parametrize("k", [0, 1, 2, 3, 6])
def test_steps_are_those_of_an_enumeration(k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    texts = [torch.rand(n, generator=generator, dtype=torch.float64) for n in (1, 2, 5, 8, 3)]
    problem = torch.cat([torch.full((len(text),), number) for number, text in enumerate(texts)])
    found = steps_taken(torch.cat(texts), problem, k).tolist()
    assert found == pytest.approx([expected_steps(text.tolist(), k) for text in texts], abs=EXACT)


def test_without_proposals_every_token_takes_a_step() -> None:
    assert steps_taken(torch.ones(7), torch.zeros(7, dtype=torch.long), 0).tolist() == [7.0]


def test_steps_that_stop_at_the_first_rejection_only_are_told_apart() -> None:
    # the wrong variant: a step's tokens without the chance that the next one begins inside it
    chances = torch.tensor([0.9, 0.1, 0.9, 0.1], dtype=torch.float64)
    wrong = 4 / float((1 + chances + chances * chances.roll(-1)).mean())
    assert abs(float(steps_taken(chances, torch.zeros(4, dtype=torch.long), 2)[0]) - wrong) > 0.05
