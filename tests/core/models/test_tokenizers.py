"""Prompts by chat templates, and vocabularies that must be the same."""

from __future__ import annotations

import pytest
from support.tiny_tokenizers import tiny_tokenizer

from cactus_decoding.core.models.tokenizers import as_chat_prompt, check_same_vocabulary


def test_a_template_is_needed_and_may_fail():
    tokenizer = tiny_tokenizer("byte_level")
    with pytest.raises(ValueError, match="the target has no chat template"):
        as_chat_prompt(tokenizer, "a cat")
    tokenizer.chat_template = "{{ raise_exception('only\nsystem messages') }}"
    with pytest.raises(ValueError, match="the target's chat template fails: only system messages"):
        as_chat_prompt(tokenizer, "a cat")
    tokenizer.chat_template = "<eos>{{ messages[0]['content'] }}!"  # which this tokenizer puts before no text
    assert as_chat_prompt(tokenizer, "a cat") == "<eos>a cat!"


def test_the_first_difference_is_named():
    target, draft = (tiny_tokenizer("byte_level") for _ in range(2))
    check_same_vocabulary(target, draft, "big", "small")
    target.add_tokens(["zebra", "lion"])
    with pytest.raises(
        ValueError,
        match=r"'big' .* differ in 2 tokens, first in token \d+: 'zebra' and none; both must .* cross-tokenizer",
    ):
        check_same_vocabulary(target, draft, "big", "small")
