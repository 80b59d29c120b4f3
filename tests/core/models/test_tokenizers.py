"""Prompts by chat templates."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

import pytest
from support.tiny_tokenizers import tiny_tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from cactus_decoding.core.models import tokenizers
from cactus_decoding.core.models.tokenizers import as_chat_prompt, conversation_prompt


def test_a_template_is_needed_and_may_fail():
    tokenizer = tiny_tokenizer("byte_level")
    with pytest.raises(ValueError, match="the target has no chat template"):
        as_chat_prompt(tokenizer, "a cat")
    tokenizer.chat_template = "{{ raise_exception('only\nsystem messages') }}"
    with pytest.raises(ValueError, match="the target's chat template fails: only system messages"):
        as_chat_prompt(tokenizer, "a cat")
    tokenizer.chat_template = "<eos>{{ messages[0]['content'] }}!"  # which this tokenizer puts before no text
    assert as_chat_prompt(tokenizer, "a cat") == "<eos>a cat!"


class Rendering:
    """A tokenizer that is nothing but its template."""

    bos_token, bos_token_id = None, None

    def __init__(self, template):
        self.chat_template = template

    def __call__(self, text):
        return SimpleNamespace(input_ids=[])

    def apply_chat_template(self, conversation, *, tokenize, **options):
        return render_jinja_template([conversation], chat_template=self.chat_template, **options)[0][0]


def test_templates_run_and_write_within_limits(monkeypatch):
    monkeypatch.setattr(tokenizers, "MAX_TEMPLATE_TEXT", 1_000)
    said = [{"role": "user", "content": "Hi"}]
    for template, message in (
        ("{{ 'x' * 9999 }}", "it writes 9,999 characters, of which 1,000 are allowed"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "recursion"),
        ("{{ raise_exception('no') }}", "no"),
        ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__'"),
    ):
        with pytest.raises(ValueError, match="the target's chat template fails: ") as error:
            conversation_prompt(Rendering(template), said)
        assert message in str(error.value)
    monkeypatch.setattr(tokenizers, "TEMPLATE_SECONDS", 0.2)
    with pytest.raises(ValueError, match="it takes longer than"):
        conversation_prompt(Rendering("{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3), said)
    slow = Rendering("{{ messages[0].content }}")
    slow.apply_chat_template = lambda *_, **__: time.sleep(0.3) or Rendering.apply_chat_template(slow, *_, **__)
    assert conversation_prompt(slow, said) == "Hi", "what comes before the template does not count"
    monkeypatch.undo()
    traced = sys.gettrace()
    assert conversation_prompt(Rendering("{{ messages[0].content }}"), said) == "Hi"
    assert sys.gettrace() is traced
