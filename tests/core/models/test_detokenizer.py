"""From tokens to parts of text that can be shown at once."""

from __future__ import annotations

import random

import pytest
from transformers import AutoTokenizer

from cactus_decoding import Fate, zoo
from cactus_decoding.core.models.tokenizers import DecodedPart, IncrementalDetokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(zoo.path("target"))


def shown(tokenizer, token_ids, stop=()):
    detokenizer, fates = IncrementalDetokenizer(tokenizer, stop), list(Fate)
    groups = [detokenizer.push(token, fates[i % len(fates)]) for i, token in enumerate(token_ids)]
    return [*groups, detokenizer.finish()]


def test_a_character_of_several_tokens_is_shown_whole_and_once(tokenizer):
    ids = tokenizer("Zoë pays 12€ – 漢字 🌵!", add_special_tokens=False).input_ids
    parts = [part for group in shown(tokenizer, ids) for part in group]
    assert "".join(part.text for part in parts) == "Zoë pays 12€ – 漢字 🌵!"
    assert not any("�" in part.text for part in parts)
    fate_of_the_last = list(Fate)[(len(ids) - 1) % len(Fate)]
    assert parts[-1] == DecodedPart("!", fate_of_the_last)


def test_each_token_keeps_its_own_text(tokenizer):
    byte = {tokenizer.decode([token]): token for token in tokenizer.get_vocab().values()}
    a, b = byte["a"], byte["b"]
    first, second = tokenizer("é", add_special_tokens=False).input_ids
    groups = shown(tokenizer, [a, first, second, b, first, a])
    texts = [[part.text for part in group] for group in groups]
    assert texts == [["a"], [], ["é"], ["b"], [], ["�", "a"], []]
    fates = [*Fate, *Fate]
    assert groups[5][0].fate == fates[4]  # the stray byte is token 4, not the letter after it
    assert groups[5][1].fate == fates[5]


def test_parts_add_up_to_the_text_whatever_the_tokens(tokenizer):
    rng = random.Random(0)
    for _ in range(50):
        ids = [rng.randrange(len(tokenizer)) if rng.random() < 0.5 else rng.randrange(3, 259) for _ in range(40)]
        text = "".join(part.text for group in shown(tokenizer, ids) for part in group)
        assert text == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("stop", ["= 24", "####", " boxes", "\n", "never", "4", "= 2 = 2"])
def test_what_a_stop_string_cuts_is_never_shown(tokenizer, stop):
    text = "In 2 boxes: 4 * 6 = 2 = 24.\n#### 24"
    token_ids, trimmed = [], text.partition(stop)[0]
    for token in tokenizer(text, add_special_tokens=False).input_ids:
        token_ids.append(token)
        if stop in tokenizer.decode(token_ids):
            break
    assert "".join(part.text for group in shown(tokenizer, token_ids, [stop]) for part in group) == trimmed


def test_characters_are_counted_before_they_are_shown(tokenizer):
    ids = tokenizer("Zoë 漢🌵 pays!", add_special_tokens=False).input_ids
    detokenizer, counted = IncrementalDetokenizer(tokenizer, ["pays?"]), [0]
    for token in ids:
        detokenizer.push(token, Fate.ACCEPTED)
        counted.append(detokenizer.num_characters)
    expected = [len(tokenizer.decode(ids[:count]).rstrip("�")) for count in range(len(ids) + 1)]
    assert counted == expected
    assert len(set(counted)) < len(counted)
