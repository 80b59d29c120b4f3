"""Rows that are kept coarsely: what is lost is bounded, and nothing where all tokens are kept."""

from __future__ import annotations

import pytest
import torch
from support.tiny_models import tiny_llama

from cactus_decoding.lab.training.data import IGNORED, TokenSequence, collate
from cactus_decoding.lab.training.losses import Rows, parse_loss
from cactus_decoding.lab.training.row_cache import RowCache, coarse, likeliest

SEQUENCES = [TokenSequence([1, 2, 3, 4, 5], 2), TokenSequence([6, 7, 1], 0), TokenSequence([2, 2, 5, 1], 1)]


@pytest.fixture(scope="module")
def models():
    return [tiny_llama(seed, 40, sharpness=0.3) for seed in (0, 1)]


def rows_of(models, chosen=SEQUENCES):
    batch = collate(chosen)
    labels = batch.pop("labels")[:, 1:]
    with torch.no_grad():
        target, draft = (model(**batch).logits[:, :-1] for model in models)
    return target, draft, labels.clamp(min=0), labels != IGNORED


def kept_rows(cache, models, indices):
    _, draft, tokens, mask = rows_of(models, [SEQUENCES[index] for index in indices])
    return coarse(*cache.rows(indices), cache.vocabulary, draft, tokens, mask)


@pytest.mark.parametrize("loss", ["kl", "reverse_kl", "lk", "block", "cross_entropy"])
def test_losses_are_the_same_where_every_token_is_kept(models, tmp_path, loss):
    cache = RowCache(tmp_path, models[0], SEQUENCES)
    cache.fill()
    found = parse_loss(loss)(kept_rows(cache, models, [2, 0]))
    expected = parse_loss(loss)(Rows.of(*rows_of(models, [SEQUENCES[2], SEQUENCES[0]])))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_bias_of_few_tokens_is_bounded_as_it_is_stated(models, tmp_path):
    cache = RowCache(tmp_path, models[0], SEQUENCES, top=5)
    cache.fill()
    found, exact = kept_rows(cache, models, [0, 1, 2]), Rows.of(*rows_of(models))
    rest_of_target, rest_of_draft = found.target_probs[:, -1], found.draft_probs[:, -1]
    assert rest_of_target.min() > 0.05, "the tail matters in this test"
    torch.testing.assert_close(found.target_probs.sum(-1), torch.ones_like(rest_of_target))
    torch.testing.assert_close(found.draft_probs.sum(-1), torch.ones_like(rest_of_target))
    excess = found.acceptance - exact.acceptance
    assert excess.min() >= -1e-12
    assert (excess <= torch.minimum(rest_of_target, rest_of_draft) + 1e-12).all()
    assert excess.max() > 1e-3
    for loss in ("kl", "reverse_kl"):
        assert (parse_loss(loss)(found) <= parse_loss(loss)(exact) + 1e-12).all()
    torch.testing.assert_close(parse_loss("cross_entropy")(found), parse_loss("cross_entropy")(exact))


def test_what_is_there_is_not_computed_again(models, tmp_path):
    cache = RowCache(tmp_path, models[0], SEQUENCES, top=3)
    done: list[int] = []
    cache.fill(done.append)
    assert done == [0, 3], "each batch, and the end"
    [shard] = cache.folder.iterdir()
    written = shard.stat().st_mtime_ns
    done.clear()
    RowCache(tmp_path, models[0], SEQUENCES, top=3).fill(done.append)
    assert (shard.stat().st_mtime_ns, done) == (written, [3])
    others = (models[1], SEQUENCES), (models[0], SEQUENCES[:2]), (models[0], SEQUENCES)  # and all of the likeliest
    assert len({cache.folder, *(RowCache(tmp_path, *each).folder for each in others)}) == 4


def test_a_tail_that_rounding_would_swallow_keeps_its_mass():
    # what the likeliest leave of 1 is 0 in float32; the others' own sum is not
    logits = torch.tensor([[0.0, -30.0, -31.0]])
    _, log_probs = likeliest(logits, top=1)
    assert log_probs[0, 1].item() == pytest.approx(torch.tensor([-30.0, -31.0]).logsumexp(-1).item(), abs=1e-5)
    found = coarse(*likeliest(logits, top=1), 3, torch.zeros(1, 1, 3), torch.tensor([[0]]), torch.tensor([[True]]))
    exact = Rows.of(logits.unsqueeze(0), torch.zeros(1, 1, 3), torch.tensor([[0]]))
    reverse = parse_loss("reverse_kl")
    assert (reverse(found) <= reverse(exact) + 1e-5).all()


@pytest.mark.parametrize(("of_target", "of_draft"), [(9, 6), (6, 9)])
def test_tokens_that_only_one_model_has_are_left_out(of_target, of_draft):
    generator = torch.Generator().manual_seed(3)
    target = torch.randn(4, of_target, generator=generator, dtype=torch.float64)
    draft = torch.randn(1, 4, of_draft, generator=generator, dtype=torch.float64)
    given = draft, torch.tensor([[0, 1, 2, 3]]), torch.ones(1, 4, dtype=torch.bool)
    found, exact = coarse(*likeliest(target, top=9), of_target, *given), Rows.of(target.unsqueeze(0), *given)
    for loss in ("kl", "reverse_kl", "lk", "total_variation", "cross_entropy"):
        torch.testing.assert_close(parse_loss(loss)(found), parse_loss(loss)(exact), rtol=0, atol=1e-9)
