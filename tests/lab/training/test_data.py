"""Documents, their tokens, and what is held out."""

from __future__ import annotations

import json
import random

import pytest
import torch
from support.draft_training import write_data
from support.tables import all_of
from transformers import AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.lab.training.data import (
    Document,
    TokenSequence,
    as_sequence,
    collate,
    commonest,
    digest_of,
    in_chat,
    read_documents,
    split,
)
from cactus_decoding.lab.training.trainer import LengthGroups


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(zoo.path("target"))


def test_objects_and_tasks_become_documents(tmp_path):
    file = tmp_path / "data.jsonl"
    lines = [{"prompt": "a"}, {"prompt": "a", "completion": "b"}, {"text": "c"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    assert read_documents(str(file)) == [Document("a", None), Document("a", "b"), Document("", "c")]
    assert read_documents(str(file), 1) == [Document("a", None)]
    file.write_text(json.dumps({"question": "How many?", "answer": "3 * 4 = 12\n#### 12"}))  # as GSM8K's file has it
    assert read_documents(str(file)) == [Document("Question: How many?\nAnswer:", None)]
    assert [each.prompt for each in read_documents(f"gsm8k:path={file}")] == ["Question: How many?\nAnswer:"]
    documents = read_documents("word_problems:split=validation", 3)
    assert [each.completion for each in documents] == [None] * 3
    assert digest_of(documents) == digest_of(read_documents("word_problems:split=validation", 3))
    assert digest_of(documents) != digest_of(documents[:2])


def test_prompts_of_a_chat_are_messages_that_the_template_writes(tmp_path, tokenizer):
    file = tmp_path / "data.jsonl"
    lines = [{"prompt": "a", "completion": "b"}, {"text": "c"}, {"question": "How many?", "answer": "#### 12"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    written = in_chat(read_documents(str(file), chat=True), tokenizer, None)
    asked = "Question: {}\nAnswer:".format
    assert written == [Document(asked("a"), "b"), Document("", "c"), Document(asked("How many?"), None)]


@all_of("content, message", [
    ("\n\n", "has no documents"),
    ('{"text": ""}', "line 1: 'text' must be a text"),
    ('{"prompts": "a"}', "line 1: 'prompt' is missing"),
    ('{"prompt": "a", "completion": 3}', "line 1: 'completion' must be a text"),
    (None, "held out for tests"),
])  # fmt: skip
def test_data_of_which_nothing_can_be_learned_are_refused(tmp_path, content, message):
    file = tmp_path / "data.jsonl"
    file.write_text(content or "")
    with pytest.raises(ValueError, match=message):
        read_documents(str(file) if content else "word_problems:split=test,seed=3")


def test_a_completion_ends_and_is_cut(tokenizer):
    document = Document("Question: Tom has 4 pens.", " He has 4.")
    whole = as_sequence(tokenizer, document, None, [tokenizer.eos_token_id], 100)
    assert tokenizer.decode(whole.token_ids) == (
        f"{tokenizer.bos_token}{document.prompt}{document.completion}{tokenizer.eos_token}"
    )
    assert whole.prompt_length == len(tokenizer(document.prompt).input_ids)
    assert as_sequence(tokenizer, document, None, [], 8) == TokenSequence(whole.token_ids[:8], whole.prompt_length)
    assert as_sequence(tokenizer, document, [7, 8], [2], 100).token_ids[-2:] == [7, 8]
    text = as_sequence(tokenizer, Document("", "Tom has 4 pens."), None, [], 100)
    assert (text.prompt_length, text.learned) == (0, len(text.token_ids) - 1)  # all but the first token


def test_parts_are_disjoint_and_drawn_by_the_seed(tmp_path):
    sequences = [TokenSequence([i, i + 1], 0) for i in range(50)] + [TokenSequence([1, 2], 2)]
    parts = split(sequences, 4, seed=1)
    assert [len(part) for part in parts] == [42, 4, 4]
    assert sorted(each for part in parts for each in part) == sequences[:50]
    assert parts == split(sequences, 4, seed=1) != split(sequences, 4, seed=2)
    with pytest.raises(ValueError, match="there are 2 documents of which anything could be learned"):
        split(sequences[:2] + sequences[-1:], 4, seed=0)
    assert len(read_documents(str(write_data(tmp_path / "a.jsonl", 5)))) == 5


def test_answers_to_one_prompt_and_equal_texts_stay_together():
    sequences = [TokenSequence([prompt, 0, answer], 2) for prompt in range(20) for answer in range(5)]
    sequences += [TokenSequence([7, 7, 7], 0)] * 9
    parts = split(sequences, 3, seed=0)
    keys = [{tuple(each.token_ids[: each.prompt_length or None]) for each in part} for part in parts]
    assert [len(each) for each in keys] == [17, 2, 2]
    assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
    assert sum(len(part) for part in parts) == len(sequences)


def test_a_batch_counts_what_is_learned_and_the_commonest_tokens_are_counted():
    sequences = [TokenSequence([5, 6, 7, 8], 2), TokenSequence([9, 3], 0)]
    batch = collate(sequences)
    assert batch["labels"].tolist() == [[-100, -100, 7, 8], [-100, 3, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert int((batch["labels"] != -100).sum()) == sum(each.learned for each in sequences)
    assert batch["input_ids"].dtype == torch.long
    assert commonest([5, 3, 5, 9, 9, 9, 7, 3], size=3) == [3, 5, 9]
    assert commonest([5], size=1, always=[7, 8]) == [7, 8]
    assert commonest([5, 5, 1], size=9) == [1, 5]


LENGTHS = random.Random(0).choices(range(20, 200), k=251)


def padded(order: list[int]) -> int:
    return sum(4 * max(LENGTHS[place] for place in order[i : i + 4]) for i in range(0, len(order), 4))


def test_every_sequence_comes_once_in_an_order_of_seed_and_epoch_and_little_is_padded():
    groups = LengthGroups(LENGTHS, 4, seed=0)
    order = list(groups)
    assert sorted(order) == list(range(len(LENGTHS)))
    assert padded(order) < 1.1 * sum(LENGTHS) < padded(list(range(len(LENGTHS))))
    assert list(groups) == order != list(LengthGroups(LENGTHS, 4, seed=1))
    groups.set_epoch(1)
    assert list(groups) != order
    groups.set_epoch(0)
    assert list(groups) == order
