"""Continuations by the target alone: its own law, and random numbers that branches share."""

from __future__ import annotations

import pytest
import torch
from support.chi_square import rejects
from support.hybrid_gguf import ARCHITECTURES, write_hybrid
from support.tiny_pair import tiny_pair

from cactus_decoding import Pair, SamplingParams, SuffixDrafter, generate, load_pair
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.lab.training.importance.continuing import Branch, continue_alone, race
from cactus_decoding.zoo.word_problems import EXAMPLES

GREEDY = SamplingParams(temperature=0.0)


def branches(pair: Pair) -> list[Branch]:
    prompts = (pair.tokenizer(example.prompt).input_ids for example in EXAMPLES[:6])
    return [Branch(ids, len(ids), seed) for seed, ids in enumerate(prompts)]


def test_greedy_continuations_are_those_of_the_loop_and_a_stop_string_ends_them(pair: Pair) -> None:
    settings = {"temperature": 0.0, "num_speculative_tokens": 0, "max_new_tokens": 60}
    whole = [generate(pair, example.prompt, **settings).text for example in EXAMPLES[:6]]
    for batch in (1, 4, 64):
        assert continue_alone(pair, branches(pair), GREEDY, max_new_tokens=60, batch=batch) == whole
    cut = continue_alone(pair, branches(pair), GREEDY, max_new_tokens=60, stop=("####",))
    assert cut == [text.partition("####")[0] for text in whole]


def test_a_file_s_continuations_are_those_of_the_same_weights_in_transformers(pair: Pair, gguf) -> None:
    of_file = load_pair(f"{gguf('target')}:cache=float32", "suffix")
    ours, theirs = (
        continue_alone(each, branches(each) * 2, SamplingParams(), max_new_tokens=30) for each in (of_file, pair)
    )
    assert ours[:6] == ours[6:], "a seed draws the same again"
    assert sum(a == b for a, b in zip(ours[:6], theirs[:6], strict=True)) >= 5, "rows round differently"


def test_a_file_s_texts_that_begin_alike_are_each_continued(pair: Pair, gguf) -> None:
    of_file = load_pair(f"{gguf('target')}:cache=float32", "suffix")
    settings = {"temperature": 0.0, "num_speculative_tokens": 0, "max_new_tokens": 40}
    made, expected = [], []
    for branch, example in zip(branches(pair)[:3], EXAMPLES, strict=False):
        whole = generate(of_file, example.prompt, **settings)
        for part in (0, 1, 9, len(whole.token_ids)):
            made.append(Branch(branch.token_ids + whole.token_ids[:part], branch.prompt_length, 0))
            expected.append(whole.text)
    for batch in (1, 3, 64):
        assert continue_alone(of_file, made, GREEDY, max_new_tokens=40, batch=batch) == expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_recurrent_state_is_read_from_the_beginning(tmp_path, architecture: str) -> None:
    file = parse_gguf(str(write_hybrid(tmp_path / "hybrid.gguf", architecture, 0)))
    assert file is not None
    hybrid = Pair(LlamaCppModel.load("target", file), SuffixDrafter(), tiny_pair().tokenizer)
    texts = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2], [6]]
    alone = hybrid.target.twin()
    expected = []
    for text in texts:
        written = list(text)
        while len(written) < len(text) + 12:
            alone.reset()
            written.append(int(alone.append(written, rows=1).argmax()))
        expected.append(hybrid.tokenizer.decode(written[len(text) :], skip_special_tokens=True))
    assert len(set(expected)) > 1
    made = [Branch(text, len(text), 0) for text in texts]
    assert continue_alone(hybrid, made, GREEDY, max_new_tokens=12) == expected


def test_they_go_on_behind_a_part_of_the_answer_and_count_it(pair: Pair) -> None:
    [branch] = branches(pair)[:1]
    whole = generate(pair, EXAMPLES[0].prompt, temperature=0.0, num_speculative_tokens=0)
    for part in (1, 5, len(whole.token_ids) - 1, len(whole.token_ids)):
        begun = Branch(branch.token_ids + whole.token_ids[:part], branch.prompt_length, 0)
        assert continue_alone(pair, [begun], GREEDY, max_new_tokens=256) == [whole.text]
    begun = Branch(branch.token_ids + whole.token_ids[:5], branch.prompt_length, 0)
    short = continue_alone(pair, [begun], GREEDY, max_new_tokens=7)
    assert short == [pair.tokenizer.decode(whole.token_ids[:7])]
    assert continue_alone(pair, [], GREEDY, max_new_tokens=7) == []


def test_the_context_window_ends_them() -> None:
    pair = tiny_pair()
    ids = pair.tokenizer("a b c").input_ids * 60
    window = pair.target.max_length
    assert window is not None
    for length in (window - 3, window):
        [text] = continue_alone(pair, [Branch(ids[:length], length, 0)], SamplingParams(), max_new_tokens=100)
        assert len(pair.tokenizer(text).input_ids) <= window - length + 3


def test_branches_of_a_seed_draw_the_same_whoever_else_is_continued(pair: Pair) -> None:
    made = branches(pair)
    together = continue_alone(pair, [*made, *made], SamplingParams(), max_new_tokens=40)
    assert together[:6] == together[6:]
    assert continue_alone(pair, made[2:3], SamplingParams(), max_new_tokens=40) == together[2:3]
    # numbers that are not shared let answers part
    ids = made[0].token_ids
    seeds = [*range(20), *range(20), *range(1000, 1020)]
    texts = continue_alone(pair, [Branch(ids, len(ids), seed) for seed in seeds], SamplingParams(), max_new_tokens=12)
    assert texts[:20] == texts[20:40]
    assert sum(a == b for a, b in zip(texts[:20], texts[40:], strict=True)) < 15


def test_the_race_has_the_law_of_the_row() -> None:
    row = torch.tensor([0.4, 0.0, 0.3, 0.2, 0.07, 0.03])
    generator = torch.Generator().manual_seed(7)
    drawn = torch.cat([race(row[None], [generator]) for _ in range(20_000)])
    assert not rejects(drawn, row)
    wrong = torch.cat([race(row[None] ** 1.1, [generator]) for _ in range(20_000)])
    assert rejects(wrong, row)
