"""The target's answers and the draft's continuations: drawn as they should be, and the same after an interruption."""

from __future__ import annotations

import pytest
import torch
from support.chi_square import rejects
from support.interruptions import interrupt_when
from support.tiny_models import tiny_llama

from cactus_decoding.lab.training.data import TokenSequence, collate
from cactus_decoding.lab.training.sampling import Continuations, answer, read_answers, sample

STOP = 3
PROMPTS = [[1, 2, 4], [5], [6, 1, 1, 2, 7]]


@pytest.fixture(scope="module")
def model():
    model = tiny_llama(0, sharpness=0.3).float()  # eager attention pads in no float64
    model.generation_config.top_k, model.generation_config.temperature = 1, 0.1  # defaults that must not be taken
    return model


@pytest.mark.parametrize("padded", [False, True])
def test_answers_follow_the_models_own_law_whatever_its_defaults_and_padding(model, padded):
    """Each fails by chance with the probability of `rejects`; the generator is fixed."""
    prompt = PROMPTS[1 if padded else 2]
    several = [prompt, PROMPTS[2]] * 3000 if padded else [prompt] * 4000
    drawn = sample(model, several, stop_token_ids=[], max_new_tokens=1, seed=5)[:: 2 if padded else 1]
    with torch.no_grad():
        row = model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
    assert not rejects(torch.tensor(drawn), row)
    assert rejects(torch.tensor(drawn), (2 * row.log()).softmax(-1)), "a law that is sharper would be told"
    assert model.generation_config.top_k == 1


def test_an_answer_ends_with_its_first_end_of_text(model):
    written = sample(model, PROMPTS * 20, stop_token_ids=[STOP], max_new_tokens=6, seed=0)
    assert any(STOP in each for each in written)
    assert all(each.index(STOP) == len(each) - 1 for each in written if STOP in each)
    assert all(1 <= len(each) <= 6 for each in written)
    assert all(len(each) == 6 for each in written if STOP not in each)


def test_random_numbers_of_others_are_left_alone(model):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = sample(model, PROMPTS, stop_token_ids=[], max_new_tokens=3, seed=0)
    assert torch.equal(before, torch.get_rng_state())
    assert first == sample(model, PROMPTS, stop_token_ids=[], max_new_tokens=3, seed=0)
    assert first != sample(model, PROMPTS, stop_token_ids=[], max_new_tokens=3, seed=1)


def test_an_interruption_changes_no_answer(model, tmp_path):
    asked = {"stop_token_ids": [STOP], "max_new_tokens": 5, "seed": 2, "batch": 2}
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    answer(model, PROMPTS * 2, whole, **asked)
    expected = read_answers(whole)
    assert len(expected) == 6
    with pytest.raises(KeyboardInterrupt):
        answer(model, PROMPTS * 2, cut, **asked, report=interrupt_when(lambda done: done == 4))
    text = cut.read_text()
    cut.write_text(text[:-1])
    assert len(read_answers(cut)) == 4, "only the line end is missing"
    cut.write_text(text[: len(text) - 4])  # as a kill cuts it off
    assert len(read_answers(cut)) == 3
    done: list[int] = []
    answer(model, PROMPTS * 2, cut, **asked, report=done.append)
    assert (done, read_answers(cut)) == ([4, 6], expected)
    answer(model, PROMPTS * 2, cut, **asked, report=done.append)
    assert done == [4, 6], "nothing is left to do"
    cut.unlink()
    answer(model, PROMPTS, cut, stop_token_ids=[], max_new_tokens=9, longest=8, seed=0, batch=2)
    assert [len(each) for each in read_answers(cut)] == [5, 5, 3]  # no sequence may be longer


SEQUENCES = [TokenSequence([1, 2, 3, 4, 5], 2), TokenSequence([6, 7, 1, 1], 0)]


def stock(share: float, seed: int = 0) -> Continuations:
    return Continuations(SEQUENCES, share, 2, 4, stop_token_ids=[3], max_new_tokens=6, max_length=7, seed=seed)


def test_all_sequences_are_the_drafts_own_where_that_is_asked_and_none_where_the_share_is_small():
    given, model = collate(SEQUENCES), tiny_llama(0, sharpness=0.3).float()
    mixed = stock(1e-9).mixed(given, model, 0)
    assert all(mixed[name].equal(given[name]) for name in given)
    batch = stock(1.0).mixed(given, model, 0)
    columns = (batch[name].tolist() for name in ("input_ids", "labels", "attention_mask"))
    for ids, labels, mask in zip(*columns, strict=True):
        length = sum(mask)
        prompt = labels.index(next(label for label in labels if label >= 0))
        assert ids[:prompt] in ([1, 2], [6, 7])
        assert length <= 7
        assert labels[prompt:length] == ids[prompt:length]
        assert all(label == -100 for label in labels[length:])
        assert 3 not in ids[prompt : length - 1]


def test_a_resumption_where_the_stock_is_renewed_goes_on_alike():
    model, batch = tiny_llama(0, sharpness=0.3).float(), collate(SEQUENCES * 2)
    whole, resumed, other = stock(0.5), stock(0.5), stock(0.5, seed=1)
    steps = [whole.mixed(batch, model, step) for step in (0, 0, 1, 2, 2, 3)]
    again = [resumed.mixed(batch, model, step) for step in (2, 2, 3)]
    for first, second in zip(steps[3:], again, strict=True):
        assert all(first[name].equal(second[name]) for name in first)
    assert any(not steps[3][name].equal(other.mixed(batch, model, 2)[name]) for name in batch)
    assert not steps[3]["input_ids"].equal(steps[4]["input_ids"]), "batches of a step differ"
