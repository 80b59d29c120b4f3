"""Vocabularies and random models for constraints, without a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from transformers import AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.core.constraints.base import Grammar, as_grammar
from cactus_decoding.core.constraints.compiling import CompilerVocabulary
from cactus_decoding.core.constraints.matching import GrammarConstraint, GrammarVocabulary

BYTES = [bytes([i]) for i in range(256)]
END = 256


def byte_vocabulary() -> GrammarVocabulary:
    return small_vocabulary(BYTES)


def small_vocabulary(tokens: Sequence[bytes], encode: Callable[[str], list[int]] | None = None) -> GrammarVocabulary:
    end = len(tokens)
    made = CompilerVocabulary([*tokens, b"</s>"], [], [end], encode)
    return GrammarVocabulary(made.llguidance(), end + 1, [end])


def bundled_vocabulary() -> tuple[GrammarVocabulary, Callable[[list[int]], str]]:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    made = GrammarVocabulary.of(tokenizer, len(tokenizer), [tokenizer.eos_token_id])
    return made, lambda ids: tokenizer.decode(ids, skip_special_tokens=True)


def json_schema(schema: object, **more: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema} | more}


def schema_of(schema: object) -> Grammar:
    grammar = as_grammar(json_schema(schema))
    assert grammar is not None
    return grammar


def accepts(constraint: GrammarConstraint, text: str) -> bool:
    """Return whether a text in single bytes is one that the constraint allows, to its end."""
    ids = list(text.encode())
    allowed = constraint.allowed(ids)
    return allowed is not None and bool(allowed[END])


def random_answer(
    vocabulary: GrammarVocabulary, constraint: GrammarConstraint, generator: torch.Generator, longest: int
) -> list[int] | None:
    """Return tokens that a model with random weights writes at temperature 1.5; None where it does not come to an end.

    What closes texts, lists and objects is likelier than the rest, so that most answers end.
    """
    tokenizer, ids = vocabulary.tokenizer, list[int]()
    likely = [tokenizer.greedy_tokenize(text)[0] for text in ('"', "}", "]", ", ")] + [*vocabulary.ends]
    while len(ids) < longest:
        logits = torch.randn(vocabulary.size, generator=generator) * 3
        logits[likely] += 6
        allowed = constraint.allowed(ids)
        assert allowed is not None
        probs = (logits.masked_fill(~allowed, -math.inf) / 1.5).softmax(-1)
        token = int(torch.multinomial(probs, 1, generator=generator))
        if token in vocabulary.ends:
            return ids
        ids.append(token)
    return None
