"""An answer tells what is kept of proposals, as verifying them one by one does; threads are taken if they save time."""

from __future__ import annotations

import math

import pytest
import torch
from support.tables import all_of
from support.tiny_models import tiny_llama
from support.tuning import pretend, threads_of

from cactus_decoding import ModelDrafter, NgramDrafter, Pair, Request, audit, generate, load_pair
from cactus_decoding.core.rules import as_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.tuning.answers import (
    FEWEST_LOOKED_AT,
    chosen_threads,
    record_answers,
    thread_counts,
    use_fastest_threads,
)
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
    return record_answers(plain, {"small": pair.drafter}, EXAMPLES[0].prompt, request, rules, seconds=seconds, copies=5)


@all_of("settings", [{}, {"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.0}])
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


def test_copies_are_what_look_up_proposes(pair: Pair) -> None:
    found, drafter = look(pair, asked()), NgramDrafter()
    prompt = pair.tokenizer(EXAMPLES[0].prompt).input_ids
    for i, copied in enumerate(found.copied):
        assert copied == drafter.propose([*prompt, *found.token_ids[:i]], 5, SamplingParams(), None).token_ids


def test_an_answer_ends_with_its_time_but_has_a_few_tokens(pair: Pair) -> None:
    found = look(pair, asked(), seconds=0.0)
    assert len(found.token_ids) == FEWEST_LOOKED_AT == len(found.copied) == len(found.chances["small", "lossless"])
    assert look(pair, asked()).token_ids[:FEWEST_LOOKED_AT] == found.token_ids
    assert pair.drafter.model_cache.length == 0  # models forget the answer
    assert isinstance(pair.drafter.read([1, 2, 3], 2), torch.Tensor)
    width, prompt = pair.target.vocabulary_size, len(pair.tokenizer(EXAMPLES[0].prompt).input_ids)
    short = ModelDrafter(tiny_llama(1, width, positions=prompt + 5, sharpness=2.0), width)
    assert len(look(Pair(pair.target, short, pair.tokenizer), asked()).token_ids) == 5  # the draft's window ends it too


def test_numbers_of_threads_reach_all_cores_and_those_that_bring_nothing_are_left_to_others(monkeypatch) -> None:
    twenty = [1, 2, 3, 4, 6, 8, 12, 16, 20]
    for cores, expected in ((1, [1]), (2, [1, 2]), (4, twenty[:4]), (8, twenty[:6]), (20, twenty)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: range(cores), raising=False)
        assert thread_counts() == expected
    assert chosen_threads({1: 1.0}) == 1
    assert chosen_threads({1: 1.0, 2: 0.99, 4: 1.5}) == 1
    assert chosen_threads({1: 1.0, 2: 0.6, 4: 0.5}) == 4


@pytest.mark.usefixtures("settings_of_the_libraries")
def test_the_model_is_left_with_the_best_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CachedModel(tiny_llama(0))
    pretend(monkeypatch, lambda width, threads: width / threads if threads < 3 else 9.0, draft=0.1)
    assert use_fastest_threads(model, [1, 2, 3], (1, 4), math.inf) == threads_of(model) == 2
    assert use_fastest_threads(model, [1], (1, 4), math.inf) == threads_of(model) == 1


def test_a_file_has_threads_of_its_own(gguf) -> None:
    from cactus_decoding import load_pair

    target, draft = gguf("target", "q8_0"), gguf("worded", "q8_0")
    pair = load_pair(f"{target}:context_size=128", f"{draft}:context_size=128,threads=1")
    pair.target.use_threads(2)
    assert (threads_of(pair.target), threads_of(pair.drafter.model_cache)) == (2, 1)
    assert pair.target.twin().threads == 2
    assert pair.target.append([1, 2, 3], rows=1).isfinite().all()
