"""A row of the target that is no law is an error in every way to verify: no comparison with NaN keeps a token."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cactus_decoding.generation.request import Request
from cactus_decoding.sampling.rows import check_drawn
from cactus_decoding.types import Proposal
from cactus_decoding.verification.declarations import VERIFICATIONS
from cactus_decoding.verification.walk import Verifier


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize(
    ("verification", "rule"),
    [
        (name, rule)
        for name, declared in VERIFICATIONS.items()
        for rule in ("lossless", *([] if declared.lossy else ["clamped:width=1"]))
    ],
)
def test_a_target_row_of_nan_is_named(verification: str, rule: str, where: int) -> None:
    trees = not VERIFICATIONS[verification].chains
    request = Request(rule=rule, verification=verification, tree="static=1.1" if trees else None)
    verifier = request.verifier(lambda logits, _: logits.softmax(-1), lambda logits, _: logits.softmax(-1))
    logits = torch.zeros(3, 4, dtype=torch.float64)
    logits[0, 1], logits[1, 2] = 30.0, 30.0  # what is drafted would be kept
    draft = torch.full((2, 4), 0.25, dtype=torch.float64)
    proposal = Proposal([1, 2], draft, [-1, 0] if trees else None)
    as_the_loop(verifier, logits, proposal, 2)
    logits[where, 3] = math.nan
    with pytest.raises(ValueError, match=f"the target's logits after {where + 1} tokens give no probabilities"):
        as_the_loop(verifier, logits, proposal, where)


def as_the_loop(verifier: Verifier, logits: Tensor, proposal: Proposal, kept: int) -> None:
    """Verify a step; the lazy walk keeps nothing at a row of NaN, and the loop refuses what it draws there."""
    generator = torch.Generator().manual_seed(0)
    _, outcome = verifier(verifier.begin(), logits, [0, 1, 2], proposal, generator)
    assert len(outcome.path) == kept
    check_drawn("target", outcome.next_token, logits, 1 + outcome.num_accepted)
