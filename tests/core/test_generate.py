"""The Python entry points on the bundled pair: same seed same text, greedy equality, stops, and every wrong input."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
import torch
from jsonschema import Draft202012Validator
from support.tiny_models import tiny_llama
from transformers import AutoTokenizer

from cactus_decoding import (
    Drafter,
    Fate,
    FixedLength,
    Lossless,
    Pair,
    Proposal,
    SuffixDrafter,
    generate,
    load_pair,
    speculative_generate,
    stream,
    zoo,
)
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.engines.transformers.cached_model import CachedModel


@pytest.fixture(scope="module")
def greedy(pair, prompts) -> list[list[int]]:
    """What the target's own `generate` answers."""
    inputs = [pair.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False) for prompt in prompts]
    answers = [pair.target.model.generate(**each, do_sample=False, max_new_tokens=80)[0] for each in inputs]
    return [ids[each.input_ids.shape[1] :].tolist() for ids, each in zip(answers, inputs, strict=True)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        *({"rule": rule} for rule in ("cactus:delta=1.0", "clamped:width=1.0", "typical", "top_k:k=5")),
        {"rule": "relaxed_greedy:margin=0", "tree": "static=3.2.1"},
        {"rule": "cactus:delta=1", "tree": "static=3.2.1"},
        {"verification": "block"},
        {"verification": "block", "rule": "clamped:width=1", "budget": 0.1, "num_speculative_tokens": 6},
        {"verification": "block", "num_speculative_tokens": "confidence:threshold=0.3"},
        {"verification": "token", "tree": "static=4.2.2.1"},
        {"verification": "joint", "tree": "static=1.1.1"},
        {"verification": "joint", "tree": "static=2.2.2,drawn=0"},
        {"verification": "token", "tree": "best_first,nodes=12"},
        {"verification": "joint", "tree": "best_first,nodes=12,lookup=4"},
        {"verification": "coupled", "tree": "static=3.2.1"},
    ],
    ids=str,
)
def test_temperature_zero_equals_plain_generate(pair, prompts, greedy, settings):
    for prompt, expected in zip(prompts, greedy, strict=True):
        ours = generate(pair, prompt, temperature=0, max_new_tokens=80, **settings)
        assert ours.token_ids == expected
        assert ours.metrics.steps < len(expected)


def test_same_seed_same_text(pair, prompts):
    first, again = (generate(pair, prompts[0], rule="cactus:delta=0.5", seed=11) for _ in range(2))
    assert first.text == again.text
    assert first.fates == again.fates
    assert first.finish_reason == "stop"
    assert len({generate(pair, prompts[0], seed=seed).text for seed in range(5)}) > 1


def test_plain_sampling_drafts_nothing(pair, prompts):
    response = generate(pair, prompts[0], num_speculative_tokens=0, seed=0)
    assert response.metrics.drafted == 0
    assert set(response.fates) == {Fate.BONUS}
    assert response.metrics.steps == len(response.token_ids) == response.metrics.generated


def test_a_response_grows_step_by_step(pair, prompts):
    response = stream(pair, prompts[1], rule=Lossless(), seed=2)
    texts = [response.text for _ in response]
    assert all(later.startswith(earlier.rstrip("�")) for earlier, later in pairwise(texts))
    assert texts[-1] == generate(pair, prompts[1], seed=2).text
    assert response.metrics.recovered + response.metrics.bonus == response.metrics.steps == len(texts)


def test_stop_strings_end_and_trim_the_text(pair, prompts):
    whole = generate(pair, prompts[0], seed=4).text
    for stop in ("\n", " = ", "####", "."):
        cut = generate(pair, prompts[0], seed=4, stop=[stop])
        assert cut.text == whole[: whole.index(stop)]
        assert cut.finish_reason == "stop"
        assert cut.metrics.generated == len(cut.token_ids)
    assert generate(pair, prompts[0], seed=4, stop=["never written"]).text == whole


def test_max_new_tokens(pair, prompts):
    for limit in (1, 2, 9):
        response = generate(pair, prompts[0], seed=4, max_new_tokens=limit)
        assert len(response.token_ids) == limit
        assert response.finish_reason == "length"


def test_the_context_window_ends_a_response(pair):
    room = 5
    filler = pair.target.max_length - room - len(pair.tokenizer("").input_ids)
    response = generate(pair, " a" * filler, seed=0, stop=[], max_new_tokens=100, temperature=5.0)
    assert len(response.token_ids) <= room


def test_the_targets_first_layers_draft_for_it(pair, prompts):
    with_exit = load_pair(draft="early_exit:layers=3")
    target, draft = with_exit.target.model, with_exit.drafter._model.model
    hidden = target(torch.tensor([[5, 6, 7]]), output_hidden_states=True).hidden_states[3]
    expected = target.lm_head(target.model.norm(hidden))
    assert torch.allclose(draft(torch.tensor([[5, 6, 7]])).logits, expected, atol=1e-4)
    assert target.config.num_hidden_layers == 6, "the target is as it was"
    ours = {tensor.data_ptr() for tensor in target.parameters()}
    assert all(tensor.data_ptr() in ours for tensor in draft.parameters()), "no weight is stored twice"
    greedy = [generate(each, prompts[0], temperature=0.0) for each in (pair, with_exit)]
    assert greedy[0].token_ids == greedy[1].token_ids
    assert greedy[1].metrics.accepted > 0


def test_an_exit_after_the_last_layer_is_refused():
    with pytest.raises(ValueError, match="must be before layer 6, the last, but is at 6"):
        load_pair(draft="early_exit:layers=6")


def test_any_text_survives_the_tokenizer(pair):
    text = "Zoë pays 12€, keeps 1,234 – 漢字 🌵\n#### 5"
    assert pair.tokenizer.decode(pair.tokenizer(text).input_ids, skip_special_tokens=True) == text
    assert len(pair.tokenizer("2024", add_special_tokens=False).input_ids) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "cactis"}, "unknown rule 'cactis'"),
        ({"num_speculative_tokens": 1024}, "num_speculative_tokens must be below the target's 1024 positions"),
        ({"prompt": "word " * 2000}, "the prompt must be shorter than the target's 1024 positions"),
        ({"prompt": 5}, "prompt must be a string, but is 5"),
    ],
)
def test_wrong_input_is_refused_before_any_work(pair, arguments, message):
    pair.target.reset()
    with pytest.raises((ValueError, TypeError), match=message):
        generate(pair, **{"prompt": "Question: 1?\nAnswer:"} | arguments)
    assert pair.target.length == 0


def test_a_target_that_is_named_alone_drafts_by_look_up():
    assert load_pair(zoo.path("target")).drafter == SuffixDrafter()


def test_an_unreadable_model_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no model"):
        load_pair(tmp_path, "ngram")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot load a tokenizer for the target"):
        load_pair(tmp_path, "ngram")
    AutoTokenizer.from_pretrained(zoo.path("target")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="cannot load the target"):
        load_pair(tmp_path, "ngram")


def test_different_vocabularies_are_refused(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("draft"))
    tokenizer.add_tokens([f"<extra {i}>" for i in range(60)])
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((zoo.path("draft") / "config.json").read_bytes())
    with pytest.raises(
        ValueError, match=r"vocabularies of target .* \(1003 tokens\) and draft .* \(1063 tokens\) differ"
    ):
        load_pair(zoo.path("target"), tmp_path)


def test_a_text_longer_than_the_draft_s_window_goes_on_without_drafts(pair):
    model = tiny_llama(0, len(pair.tokenizer), positions=8).float()
    small = Pair(CachedModel(pair.target.model), ModelDrafter(model), pair.tokenizer)
    prompt = "Question: how many words fit in here?\nAnswer:"
    alone = generate(small, prompt, max_new_tokens=5, temperature=0)
    assert alone.metrics.generated == 5  # what pays is what there is room for: copies
    fixed = generate(small, prompt, max_new_tokens=5, temperature=0, num_speculative_tokens=6)
    assert (fixed.token_ids, fixed.metrics.drafted) == (alone.token_ids, 0)
    with pytest.raises(ValueError, match="must be below the draft's 8 positions, but is 8"):
        generate(small, prompt, num_speculative_tokens=8)


def test_a_drafter_that_must_be_asked_in_each_step_is_not_left_out(pair):
    class Own(Drafter):
        def propose(self, token_ids, limit, to_probs, generator):
            return Proposal([token_ids[-1]] * limit, None)

    own = Pair(CachedModel(pair.target.model), Own(), pair.tokenizer)
    assert generate(own, "a b", max_new_tokens=3, seed=0).request.num_speculative_tokens == FixedLength(6)
    with pytest.raises(ValueError, match="auto leaves its drafter out of some steps, but a Own must be asked in"):
        generate(own, "a b", num_speculative_tokens="auto")


def test_half_precision_runs():
    pair = load_pair(dtype=torch.bfloat16)
    assert generate(pair, "Question: 1?\nAnswer:", seed=0, max_new_tokens=10).metrics.generated > 0


PENS = {
    "type": "object",
    "properties": {"say": {"type": "string", "maxLength": 9}, "pens": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["say", "pens"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "pens", "schema": PENS}}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.0},
        {"rule": "cactus:delta=1", "temperature": 1.5},
        {"rule": "clamped:width=2", "budget": 0.5, "top_p": 0.9},
        {"verification": "block", "num_speculative_tokens": 4},
        {"tree": "static=3.2.1"},
        {"num_speculative_tokens": 0},
    ],
    ids=str,
)
def test_answers_fit_a_schema_whatever_else_is_asked(pair, prompts, settings):
    for seed in range(3):
        response = generate(pair, prompts[0], response_format=FORM, seed=seed, max_new_tokens=80, **settings)
        assert response.finish_reason == "stop"
        Draft202012Validator(PENS).validate(json.loads(response.text))


def test_looked_up_proposals_do_not_leave_a_form(pair, prompts):
    for rule in ("lossless", "typical", "top_k:k=5"):
        response = generate(
            pair.with_draft("ngram"),
            prompts[0],
            response_format={"type": "grammar", "syntax": "regex", "definition": "[0-9]{2}( [a-z]{2,4}){3}"},
            rule=rule,
            seed=1,
        )
        assert re.fullmatch("[0-9]{2}( [a-z]{2,4}){3}", response.text)


def test_a_constraint_may_be_anything_that_says_what_is_allowed(pair, prompts):
    class Alternating:
        def allowed(self, token_ids):
            mask = torch.zeros(pair.target.vocabulary_size, dtype=torch.bool)
            mask[[20, 21] if len(token_ids) % 2 else [30, 31]] = True
            return mask

        def forced(self, token_ids, limit):
            return []

        def may_end(self, token_ids):
            return False

    ids = generate(pair, prompts[0], response_format=Alternating(), max_new_tokens=9, seed=2).token_ids
    assert [token // 10 for token in ids] == [3, 2, 3, 2, 3, 2, 3, 2, 3]


def test_a_form_that_is_none_is_refused(pair, prompts):
    with pytest.raises(TypeError, match="response_format must be an object or a Constraint, but is 'json'"):
        generate(pair, prompts[0], response_format="json")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"device": "cuda:9"}, "device must be one that this machine has, but is 'cuda:9'"),
        ({"device": "gpu"}, "device must be"),
        ({"device": 3.5}, "device must be"),
        ({"dtype": "float33"}, "dtype must be 'auto' or one of floating point"),
        ({"dtype": "int8"}, "dtype must be"),
        ({"dtype": "Tensor"}, "dtype must be"),
    ],
    ids=str,
)
def test_devices_and_types_that_are_none(given, words):
    with pytest.raises(ValueError, match=words):
        load_pair(**given)


def test_metrics_must_be_metrics(pair):
    inputs = pair.tokenizer("Question:", return_tensors="pt", return_token_type_ids=False)
    with pytest.raises(TypeError, match="metrics must be a Metrics"):
        pair.target.model.generate(
            **inputs,
            custom_generate=speculative_generate,
            assistant_model=pair.drafter.model,
            max_new_tokens=4,
            metrics={},
        )
