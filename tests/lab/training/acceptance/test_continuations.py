"""The draft's own continuations: mixed into batches, and the same after a resumption."""

from __future__ import annotations

from support.tiny_models import tiny_llama

from cactus_decoding.lab.training.acceptance.data import TokenSequence, collate
from cactus_decoding.lab.training.acceptance.sampling import Continuations

SEQUENCES = [TokenSequence([1, 2, 3, 4, 5], 2), TokenSequence([6, 7, 1, 1], 0)]
PROMPTS = ([1, 2], [6, 7])


def stock(share: float, seed: int = 0) -> Continuations:
    return Continuations(
        SEQUENCES, share, 2, 4, stop_token_ids=[3], max_new_tokens=6, max_length=7, seed=seed
    )  # fmt: skip


def test_all_sequences_are_the_drafts_own_where_that_is_asked():
    batch = stock(1.0).mixed(collate(SEQUENCES), tiny_llama(0, sharpness=0.3).float(), 0)
    for ids, labels, mask in zip(
        *(batch[name].tolist() for name in ("input_ids", "labels", "attention_mask")), strict=True
    ):
        length = sum(mask)
        prompt = labels.index(next(label for label in labels if label >= 0))
        assert ids[:prompt] in PROMPTS
        assert length <= 7
        assert labels[prompt:length] == ids[prompt:length]
        assert all(label == -100 for label in labels[length:])
        assert 3 not in ids[prompt : length - 1]


def test_none_are_where_the_share_is_small():
    given = collate(SEQUENCES)
    mixed = stock(1e-9).mixed(given, tiny_llama(0, sharpness=0.3).float(), 0)
    assert all(mixed[name].equal(given[name]) for name in given)


def test_a_resumption_where_the_stock_is_renewed_goes_on_alike():
    model, batch = tiny_llama(0, sharpness=0.3).float(), collate(SEQUENCES * 2)
    whole, resumed, other = stock(0.5), stock(0.5), stock(0.5, seed=1)
    steps = [whole.mixed(batch, model, step) for step in (0, 0, 1, 2, 2, 3)]
    again = [resumed.mixed(batch, model, step) for step in (2, 2, 3)]
    for first, second in zip(steps[3:], again, strict=True):
        assert all(first[name].equal(second[name]) for name in first)
    assert any(not steps[3][name].equal(other.mixed(batch, model, 2)[name]) for name in batch)
    assert not steps[3]["input_ids"].equal(steps[4]["input_ids"]), "batches of a step differ"
