"""Counting entries by an even grid, against counting by halving."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cactus_decoding.core.audit import audit
from cactus_decoding.core.divergences.ratio_order import count_up_to

GENERATOR_SEEDS = range(3)


def entries_of(kind: str, generator: torch.Generator) -> Tensor:
    uniform = torch.rand(300, dtype=torch.float64, generator=generator)
    match kind:
        case "even":
            return uniform
        case "crowded":
            return 1 - uniform * 1e-9
        case "equal":
            return torch.full((300,), 0.5, dtype=torch.float64)
        case "infinite":
            return torch.cat([uniform, torch.tensor([torch.inf])])
        case _:
            return torch.exp(40 * uniform - 30)


@pytest.mark.parametrize("kind", ["even", "crowded", "equal", "infinite", "far apart"])
@pytest.mark.parametrize("seed", GENERATOR_SEEDS)
def test_counts_are_those_of_halving(kind: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    entries = entries_of(kind, generator).sort().values.unsqueeze(0)
    values = torch.exp(4 * torch.randn(9_000, dtype=torch.float64, generator=generator))
    # ties with entries, and the floats next to them, decide which side of a bin a value is on
    near = entries[0].repeat(3)
    near[300:600] = torch.nextafter(near[300:600], torch.tensor(torch.inf, dtype=torch.float64))
    near[600:900] = torch.nextafter(near[600:900], torch.tensor(-torch.inf, dtype=torch.float64))
    values = torch.cat([values, near, torch.tensor([0.0, torch.inf], dtype=torch.float64)]).unsqueeze(0)
    assert torch.equal(count_up_to(entries, values), torch.searchsorted(entries, values, right=True))


def test_audit_of_a_large_vocabulary_equals_that_of_small_ones() -> None:
    # two halves of a row that never meet have the audits of their own rows: grid against halving
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2_000, dtype=torch.float64, generator=generator) * 3
    target = logits.softmax(-1)
    draft = (logits + torch.randn(2_000, dtype=torch.float64, generator=generator)).softmax(-1)
    padding = torch.zeros(8_000, dtype=torch.float64)
    for rule in ("cactus:delta=0.001", "cactus:delta=0.5"):
        small = audit(rule, target, draft)
        large = audit(rule, torch.cat([padding, target]), torch.cat([padding, draft]))
        torch.testing.assert_close(large.output_probs[8_000:], small.output_probs, rtol=0, atol=1e-14)
        torch.testing.assert_close(large.kl, small.kl, rtol=0, atol=1e-13)
