"""An answer tells what is kept of proposals: the same as verifying drawn proposals one by one does."""

from __future__ import annotations

import math

import pytest
import torch
from support.tiny_models import tiny_llama

from cactus_decoding import ModelDrafter, NgramDrafter, Pair, Request, audit, generate, load_pair
from cactus_decoding.core.rules import as_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.tuning.answers import FEWEST, answer
from cactus_decoding.zoo.word_problems import EXAMPLES

RULES = [as_rule("lossless"), as_rule("clamped:width=1"), as_rule("cactus:delta=0.5")]


@pytest.fixture(scope="module")
def pair() -> Pair:
    bundled = load_pair("bundled", "ngram")
    width = bundled.target.vocabulary_size
    models = (tiny_llama(seed, width, positions=96, sharpness=2.0) for seed in (0, 1))
    target, draft = (CachedModel(each) for each in models)
    return Pair(target, ModelDrafter(draft, width), bundled.tokenizer)


def asked(**settings: object) -> Request:
    return Request.from_dict({"num_speculative_tokens": 0, "max_new_tokens": 24, "seed": 3, **settings})


def look(pair: Pair, request: Request, rules=RULES, seconds: float = math.inf):
    plain = Pair(pair.target, NgramDrafter(), pair.tokenizer)
    return answer(plain, {"small": pair.drafter}, EXAMPLES[0].prompt, request, rules, seconds=seconds, copies=5)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.0}])
def test_chances_are_those_of_an_audit_of_both_rows(pair: Pair, settings: dict[str, float]) -> None:
    request = asked(**settings)
    found = look(pair, request)
    plain = generate(Pair(pair.target, NgramDrafter(), pair.tokenizer), EXAMPLES[0].prompt, request)
    assert found.token_ids == plain.token_ids
    text = [*plain.prompt_token_ids, *plain.token_ids]
    for i in (0, 7, len(found.token_ids) - 1):
        end = len(plain.prompt_token_ids) + i
        rows = []
        for model in (pair.target, pair.drafter.model_cache):
            model.reset()
            rows.append(request.sampling(model.append(text[:end], rows=1)).double())
            model.reset()
        for rule in RULES:
            expected = audit(rule, *rows).acceptance.item()
            assert found.chances["small", str(rule)][i].item() == pytest.approx(expected, abs=1e-6)


def test_at_temperature_0_chances_say_whether_both_models_agree(pair: Pair) -> None:
    rule = as_rule("relaxed_greedy:margin=1")
    found = look(pair, asked(temperature=0.0), [as_rule("lossless"), rule])
    lossless, relaxed = (found.chances["small", name] for name in ("lossless", str(rule)))
    assert set(lossless.tolist()) <= {0.0, 1.0}
    assert bool((relaxed >= lossless).all())


def test_an_answer_ends_with_its_time_but_has_a_few_tokens(pair: Pair) -> None:
    found = look(pair, asked(), seconds=0.0)
    assert len(found.token_ids) == FEWEST == len(found.copied) == len(found.chances["small", "lossless"])
    assert look(pair, asked()).token_ids[:FEWEST] == found.token_ids


def test_it_ends_with_the_window_of_the_draft(pair: Pair) -> None:
    width = pair.target.vocabulary_size
    prompt = len(pair.tokenizer(EXAMPLES[0].prompt).input_ids)
    short = ModelDrafter(tiny_llama(1, width, positions=prompt + 5, sharpness=2.0), width)
    assert len(look(Pair(pair.target, short, pair.tokenizer), asked()).token_ids) == 5


def test_copies_are_what_look_up_proposes(pair: Pair) -> None:
    found, drafter = look(pair, asked()), NgramDrafter()
    text = [*pair.tokenizer(EXAMPLES[0].prompt).input_ids, *found.token_ids]
    for i in range(len(found.token_ids)):
        before = text[: len(text) - len(found.token_ids) + i]
        assert found.copied[i] == drafter.propose(before, 5, SamplingParams(), None).token_ids


def test_models_forget_the_answer(pair: Pair) -> None:
    look(pair, asked())
    assert pair.drafter.model_cache.length == 0
    assert isinstance(pair.drafter.read([1, 2, 3], 2), torch.Tensor)
