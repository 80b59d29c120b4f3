"""What single tokens are called."""

from __future__ import annotations

from support.traces import PROMPT

from cactus_decoding.lab.tracing import trace_response
from cactus_decoding.lab.tracing.positions import TokenNames


def test_special_tokens_are_called_by_their_name(bundled):
    trace = trace_response(bundled, PROMPT, temperature=0)
    assert (trace.positions[-1].token, trace.positions[-1].text) == ("<eos>", "")


def test_every_token_has_a_name_of_its_own_kind(bundled):
    name = TokenNames(bundled.tokenizer)
    (word,) = bundled.tokenizer(" has", add_special_tokens=False).input_ids
    assert name(word) == " has"
    byte = next(i for i in range(256) if "\ufffd" in bundled.tokenizer.decode([i]))
    assert name(byte) == bundled.tokenizer.convert_ids_to_tokens(byte)
    assert name(10_000) == "#10000"  # logits are often padded
