"""Losses are exact: against what `audit` enumerates on toy rows, and their gradients against finite differences."""

from __future__ import annotations

import pytest
import torch
from support.tables import all_of

from cactus_decoding import audit
from cactus_decoding.lab.training.losses import LOSSES, Rows, parse_loss, windows

SPELLINGS = [
    "cross_entropy",
    "kl",
    "reverse_kl",
    "total_variation",
    "log_acceptance",
    "lk",
    "lk:eta=1",
    "block",
    "block:num_speculative_tokens=2",
]
TOKENS = 7


def toy(seed: int = 0, spread: float = 1.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return logits of both models, tokens, and a mask that cuts the beginning of one text and the end of another."""
    generator = torch.Generator().manual_seed(seed)
    target, draft = (spread * torch.randn(3, 5, TOKENS, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[0, :2] = mask[1, 3:] = False
    return target, draft, torch.randint(TOKENS, (3, 5), generator=generator), mask


@pytest.fixture
def rows() -> Rows:
    return Rows.of(*toy())


def acceptance(rows: Rows) -> torch.Tensor:
    return audit("lossless", rows.target_probs, rows.draft_probs).acceptance


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@all_of("spelling", SPELLINGS)
def test_gradients_are_those_of_finite_differences(spelling):
    loss = parse_loss(spelling)
    target, draft, tokens, mask = toy()

    def of(draft_logits: torch.Tensor) -> torch.Tensor:
        if spelling.startswith("lk"):  # its weight is a constant of the gradient: hold it where it is
            weight = (-loss.eta * Rows.of(target, draft, tokens, mask).acceptance).exp()
            rows = Rows.of(target, draft_logits, tokens, mask)
            return weight * rows.kl + (1 - weight) * (1 - rows.acceptance)
        return loss(Rows.of(target, draft_logits, tokens, mask))

    assert torch.autograd.gradcheck(of, draft.clone().requires_grad_(), atol=1e-7)
    mine, theirs = (draft.clone().requires_grad_() for _ in range(2))
    loss(Rows.of(target, mine, tokens, mask)).sum().backward()
    of(theirs).sum().backward()
    close(mine.grad, theirs.grad)
    assert mine.grad[mask].abs().sum() > 0
    assert mine.grad[~mask].abs().sum() == 0


def test_losses_are_what_lossless_verification_rejects_and_divergences_those_of_torch(rows):
    accepted = acceptance(rows)
    close(parse_loss("total_variation")(rows), 1 - accepted)
    close(parse_loss("log_acceptance")(rows), -accepted.log())
    close(parse_loss("block:num_speculative_tokens=1")(rows), 1 - accepted)
    weight = (-3 * accepted).exp()
    close(parse_loss("lk")(rows), weight * parse_loss("kl")(rows) + (1 - weight) * (1 - accepted))
    q, p = (torch.distributions.Categorical(probs) for probs in (rows.target_probs, rows.draft_probs))
    close(parse_loss("kl")(rows), torch.distributions.kl_divergence(q, p))
    close(parse_loss("reverse_kl")(rows), torch.distributions.kl_divergence(p, q))
    _, draft, tokens, mask = toy()
    expected = torch.nn.functional.cross_entropy(draft[mask], tokens[mask], reduction="none")
    close(parse_loss("cross_entropy")(rows), expected)


def test_block_is_the_expected_length_of_a_step_along_each_text(rows):
    accepted = iter(acceptance(rows).tolist())
    _, _, _, mask = toy()
    alphas = [[next(accepted) if counted else None for counted in row] for row in mask.tolist()]
    expected = []
    for row in alphas:
        counted = [alpha for alpha in row if alpha is not None]
        for start in range(len(counted)):
            kept, product = 0.0, 1.0
            for alpha in counted[start : start + 3]:
                product *= alpha
                kept += product
            expected.append(kept)
    found = parse_loss("block:num_speculative_tokens=3")(rows)
    close(found, 1 - torch.tensor(expected, dtype=torch.float64) / 3)
    close(1 + windows(rows.acceptance, rows.mask, 3), 1 + torch.tensor(expected, dtype=torch.float64))


def test_a_draft_that_equals_its_target_loses_nothing():
    target, _, tokens, mask = toy()
    rows = Rows.of(target, target.clone().requires_grad_(), tokens, mask)
    for spelling in SPELLINGS:
        if not spelling.startswith(("cross_entropy", "block")):
            close(parse_loss(spelling)(rows).detach(), torch.zeros(int(mask.sum()), dtype=torch.float64))


@all_of("spelling", SPELLINGS)
def test_sharp_rows_give_finite_losses_and_gradients(spelling):
    target, draft, tokens, mask = toy(spread=200.0)
    draft = draft.float().requires_grad_()
    loss = parse_loss(spelling)(Rows.of(target.float(), draft, tokens, mask)).mean()
    loss.backward()
    assert loss.isfinite()
    assert draft.grad.isfinite().all()


def test_tokens_that_one_model_pads_are_left_out():
    target, draft, tokens, mask = toy()
    wide = torch.cat([draft, torch.full((3, 5, 2), 9.0, dtype=torch.float64)], -1)
    close(Rows.of(target, wide, tokens, mask).draft_log_probs, Rows.of(target, draft, tokens, mask).draft_log_probs)


@all_of("spelling, message", [
    ("lq", "unknown loss 'lq' in 'lq'; known are cross_entropy, kl, .*, block"),
    ("total_variatoin", "did you mean 'total_variation'"),
    (3, "must be a string such as 'lk'"),
    ("lk:eta=-1", "eta must be in"),
    ("kl:eta=1", "parameters of kl are: none"),
    ("block:num_speculative_tokens=0", "num_speculative_tokens must be at least 1"),
    ("relaxed:clamped:width=3", "it is gone: use the loss 'lk'"),
])  # fmt: skip
def test_a_wrong_spelling_says_what_is_allowed(spelling, message):
    with pytest.raises((TypeError, ValueError), match=message):
        parse_loss(spelling)


def test_a_loss_is_spelled_as_it_is_read_and_every_loss_is_tried():
    assert {spelling.partition(":")[0] for spelling in SPELLINGS} == set(LOSSES)
    for spelling in SPELLINGS:
        loss = parse_loss(spelling)
        assert parse_loss(str(loss)) == loss
