"""The target's answers: drawn from its own law, and kept so that an interruption changes nothing."""

from __future__ import annotations

import pytest
import torch
from support.chi_square import rejects
from support.tiny_models import tiny_llama

from cactus_decoding.lab.training.acceptance.sampling import answer, read_answers, sample

STOP = 3
PROMPTS = [[1, 2, 4], [5], [6, 1, 1, 2, 7]]


@pytest.fixture(scope="module")
def model():
    model = tiny_llama(0, sharpness=0.3).float()  # eager attention pads in no float64
    model.generation_config.top_k, model.generation_config.temperature = 1, 0.1  # defaults that must not be taken
    return model


def test_answers_follow_the_models_own_law_whatever_its_defaults(model):
    drawn = sample(model, [PROMPTS[2]] * 4000, stop_token_ids=[], max_new_tokens=1, seed=5)
    with torch.no_grad():
        row = model(torch.tensor([PROMPTS[2]])).logits[0, -1].softmax(-1)
    assert not rejects(torch.tensor(drawn), row)
    assert rejects(torch.tensor(drawn), (2 * row.log()).softmax(-1)), "a law that is sharper would be told"
    assert model.generation_config.top_k == 1


def test_padding_does_not_change_an_answers_law(model):
    several = [PROMPTS[1], PROMPTS[2]] * 3000
    drawn = sample(model, several, stop_token_ids=[], max_new_tokens=1, seed=6)[::2]
    with torch.no_grad():
        row = model(torch.tensor([PROMPTS[1]])).logits[0, -1].softmax(-1)
    assert not rejects(torch.tensor(drawn), row)


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

    def interrupt(done: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer(model, PROMPTS * 2, cut, **asked, report=interrupt)
    text = cut.read_text()
    cut.write_text(text[: len(text) - 4])  # as a kill cuts it off
    assert len(read_answers(cut)) == 3
    done: list[int] = []
    answer(model, PROMPTS * 2, cut, **asked, report=done.append)
    assert (done, read_answers(cut)) == ([4, 6], expected)
    answer(model, PROMPTS * 2, cut, **asked, report=done.append)
    assert done == [4, 6], "nothing is left to do"


def test_an_answer_ends_where_a_sequence_may_be_no_longer(model, tmp_path):
    file = tmp_path / "answers.jsonl"
    answer(model, PROMPTS, file, stop_token_ids=[], max_new_tokens=9, longest=8, seed=0, batch=2)
    assert [len(each) for each in read_answers(file)] == [5, 5, 3]
