"""Prompts by chat templates."""

from __future__ import annotations

import logging
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from support.tiny_models import tiny_llama
from support.tiny_tokenizers import tiny_tokenizer
from torch import Tensor
from transformers.utils.chat_template_utils import render_jinja_template

from cactus_decoding import ModelDrafter, SamplingParams
from cactus_decoding.core.models import tokenizers
from cactus_decoding.core.models.tokenizers import (
    DifferingTokens,
    as_chat_prompt,
    compare_vocabularies,
    conversation_prompt,
)
from cactus_decoding.core.sampling.params import SamplingFn


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
    bos_token, bos_token_id = None, None

    def __init__(self, template):
        self.chat_template = template

    def __call__(self, text):
        return SimpleNamespace(input_ids=[])

    def apply_chat_template(self, conversation, *, tokenize, **options):
        return render_jinja_template([conversation], chat_template=self.chat_template, **options)[0][0]


class Slow(Rendering):
    def apply_chat_template(self, conversation, **options):
        until = time.thread_time() + 0.3
        while time.thread_time() < until:
            pass
        return super().apply_chat_template(conversation, **options)


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
    assert conversation_prompt(Slow("{{ messages[0].content }}"), said) == "Hi", "what comes before it does not count"
    monkeypatch.undo()
    traced = sys.gettrace()
    assert conversation_prompt(Rendering("{{ messages[0].content }}"), said) == "Hi"
    assert sys.gettrace() is traced


DIFFERING = DifferingTokens((3, 8, 9), {3: 5, 8: 8, 9: 1})
"""Of a target with ten tokens and a draft with eight: one has another name, two are new."""
TEXT, AS_READ = [1, 3, 9, 2, 8], [1, 5, 1, 2, 0]
"""The draft has no token 8, so that it reads the first."""


class Words:
    eos_token_id = 0

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words) if word}


def test_what_differs_is_counted_and_read_as_what_the_draft_knows(caplog):
    words = [f"w{i}" for i in range(100)]
    target, draft = Words([*words, "<think>", "<call>", "<new>"]), Words([*words, "<call>", "<reserved>", "", "<own>"])
    assert compare_vocabularies(target, target, "big", "small") is None
    with caplog.at_level(logging.WARNING):
        found = compare_vocabularies(target, draft, "big", "small")
    assert found == DifferingTokens((100, 101, 102, 103), {100: 100, 101: 100, 102: 0})
    assert caplog.messages == [
        "the vocabularies of target 'big' (103 tokens) and draft 'small' (103 tokens) differ in 4 tokens, first in "
        "token 100: '<think>' and '<call>'; the draft proposes none of these"
    ]


def test_another_tokenizer_is_refused_with_the_first_difference():
    target, draft = (tiny_tokenizer("byte_level") for _ in range(2))
    target.add_tokens([f"zebra{i}" for i in range(len(draft) // 10)])
    said = (
        r"'big' .* differ in \d+ tokens, first in token \d+: 'zebra0' and none; a draft may differ in 5% .* cross-tok"
    )
    with pytest.raises(ValueError, match=said):
        compare_vocabularies(target, draft, "big", "small")


def expected_row(model) -> Tensor:
    """Return the draft's probabilities by their definition: of the tokens that both have, after the text as read."""
    logits = model(torch.tensor([AS_READ])).logits[0, -1].detach().double()
    shared = [i for i in range(8) if i != 3]
    row = torch.zeros(10, dtype=torch.float64)
    row[shared] = logits[shared].softmax(-1)
    return row


@pytest.mark.parametrize("doubled", [False, True])
def test_the_draft_never_proposes_what_differs_and_reports_what_it_draws_from(doubled):
    model, generator = tiny_llama(1, 8, sharpness=1.0).double(), torch.Generator().manual_seed(0)
    drafter = ModelDrafter(model, 10, DIFFERING)
    if doubled:
        drafter = drafter.twin()
    to_probs = SamplingFn(SamplingParams())
    seen = set()
    for _ in range(300):
        proposal = drafter.propose(TEXT, 3, to_probs, generator)
        seen |= set(proposal.token_ids)
        assert (proposal.probs[0] - expected_row(model)).abs().max() < 1e-12
        assert proposal.probs[:, [3, 8, 9]].max() == 0
    assert seen == {0, 1, 2, 4, 5, 6, 7}  # 5e-8: the probability that one of the seven is missed


def emitted(target: Tensor, drawn: Tensor, reported: Tensor) -> Tensor:
    """Return the law of lossless verification of tokens that are drawn from one row and reported with another."""
    kept = torch.where(reported > 0, (target / reported).clamp(max=1), 1.0)
    rest = (target - reported).clamp(min=0)
    return drawn * kept + (drawn * (1 - kept)).sum() * rest / rest.sum()


def test_the_law_is_the_target_s_unless_the_draft_reports_what_it_does_not_draw_from():
    model = tiny_llama(1, 8, sharpness=1.0).double()
    proposal = ModelDrafter(model, 10, DIFFERING).propose(TEXT, 1, SamplingFn(SamplingParams()), None)
    drawn = proposal.probs[0].clone()
    target = torch.randn(10, generator=torch.Generator().manual_seed(2), dtype=torch.float64).softmax(-1)
    assert (emitted(target, drawn, drawn) - target).abs().max() < 1e-12
    whole = torch.zeros(10, dtype=torch.float64)  # wrong: with the tokens that it never proposes
    whole[:8] = model(torch.tensor([AS_READ])).logits[0, -1].detach().double().softmax(-1)
    assert (emitted(target, drawn, whole) - target).abs().max() > 1e-3


def test_where_a_constraint_leaves_none_of_its_tokens_any_proposal_does():
    def only(logits: Tensor, text: list[int]) -> Tensor:
        return logits.masked_fill(torch.arange(10) != 9, -torch.inf).softmax(-1)

    proposal = ModelDrafter(tiny_llama(1, 8), 10, DIFFERING).propose(TEXT, 2, only, None)
    assert len(proposal.token_ids) == 2
    assert bool(proposal.probs.isfinite().all())
