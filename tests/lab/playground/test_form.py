"""What the playground's page offers, and from its JSON to requests: what is refused, and what rules are asked for."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from support.bundled_target import save_target
from support.playground_server import asked
from support.tables import all_of

from cactus_decoding import RULES, Budget, Request, generate, load_pair, parse_rule
from cactus_decoding.lab.playground.form import FormLimits, form, read_request, rule
from cactus_decoding.zoo import RELAXED
from cactus_decoding.zoo.word_problems import as_prompt, extract_answer


@all_of("name", RULES)
def test_rules_are_described_by_their_own_code_with_what_they_allow(name):
    described = rule(name)
    assert described["title"]
    assert [knob["name"] for knob in described["knobs"]] == [field.name for field in fields(RULES[name])]
    assert all(knob["doc"] for knob in described["knobs"])
    for preset in described["presets"]:
        parsed = parse_rule(preset["spelling"])
        assert parsed.name == name
        assert {key: value for key, value in vars(parsed).items() if value != math.inf} == {
            key: value for key, value in preset["values"].items() if value is not None or getattr(parsed, key) is None
        }
    start = parse_rule(described["presets"][0]["spelling"])
    for knob in described["knobs"]:
        for word in knob["choices"]:
            exact = {"solver": "exact"} if name == "cactus" and knob["name"] != "solver" else {}
            assert getattr(replace(start, **exact | {knob["name"]: word}), knob["name"]) == word
        if knob["kind"] == "str":
            with pytest.raises(ValueError, match="must be one of") as refusal:
                replace(start, **{knob["name"]: "no such word"})
            assert all(word in str(refusal.value) for word in knob["choices"])
            assert str(refusal.value).count(",") == len(knob["choices"])
        for end in knob["range"] or ():
            nothing_else = {"width": None, "max_kl": None} if name == "clamped" else {}
            replace(start, **nothing_else | {knob["name"]: end})


def test_rules_have_the_kinds_that_the_docs_name():
    page = (Path(__file__).parents[3] / "docs/rules/index.md").read_text(encoding="utf-8")
    named = {
        name: kind
        for names, kind in re.findall(r"^\| (\[`.*?) \| (truncation|collaboration)", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    kinds = {name: described.kind for name, described in RULES.items() if described.kind}
    assert kinds == named | {"lossless": "exact"}


def test_the_form_is_json_and_names_every_rule():
    offered = json.loads(json.dumps(form(FormLimits(), models=False), allow_nan=False))
    assert [each["name"] for each in offered["rules"]] == list(RULES)
    assert len({each["question"] for each in offered["examples"]}) == len(offered["examples"])
    fields = [field for part in offered["settings"] for field in part["fields"]]
    assert all(field["doc"] for field in fields)
    assert {field["needs"] for field in fields} == {"", "protect"}


@pytest.mark.parametrize("models", [True, False])
def test_what_the_form_begins_with_is_a_request(models):
    fields = [field for part in form(FormLimits(), models=models)["settings"] for field in part["fields"]]
    began = {field["name"]: field["start"] for field in fields if field["start"] != ""}
    kinds = {field["name"]: {"int": int, "float": float}.get(field["kind"], str) for field in fields}
    start = form(FormLimits(), models=models)["start"]  # a pair of the user begins with what pays
    assert form(FormLimits(), models=models, proposals="auto")["start"] == start | {"num_speculative_tokens": "auto"}
    body = {"prompt": "Hi", "rules": [RELAXED["rule"]]} | {name: kinds[name](text) for name, text in began.items()}
    [request] = read_request(body, FormLimits(), models=models).requests
    assert request == Request.from_dict(RELAXED | {"seed": 0})


@all_of("change, sentence", [
    ({"prompt": "  "}, "the prompt is empty"),
    ({"prompt": "a" * 8001}, "the prompt has 8001 characters; allowed are 8000"),
    ({"rules": []}, "rules must be a list of one or two spellings"),
    ({"rules": ["lossless"] * 3}, "rules must be a list of one or two spellings"),
    ({"rules": ["nonsense"]}, "unknown rule 'nonsense'"),
    ({"rules": ["cactus:delta=-1"]}, "delta must be in [0, inf), but is -1.0"),
    ({"seed": -1}, "seed must be between 0 and"),
    ({"seed": "one"}, "seed must be an integer"),
    ({"max_new_tokens": 513}, "max_new_tokens must be between 1 and 512, but is 513"),
    ({"top_p": 2}, "top_p must be in (0, 1]"),
    ({"heat": 2}, "a request has no 'heat'"),
    ({"num_speculative_tokens": 65}, "at most 64 on this server, but is 65"),
    ({"tree": "static=4.4.4"}, "at most 64 on this server, but is 84"),
    ({"verification": "both"}, "verification must be one of token, block"),
    ({"budget": {"nats": -1}}, "nats must be in [0, inf]"),
    ({"budget": "much"}, "budget must be a Budget or a number of nats"),
    ({"budget": {"much": 1}}, "'much'"),
    ({"rules": ["top_k:k=5"], "verification": "block"}, "block"),
    ({"rules": ["relaxed_greedy:margin=1"]}, "set the temperature to 0"),
    ({"budget": {"nats": 1, "expected_tokens": 50}}, "the rule must be clamped:width"),
    ({"target": 5}, "target must be a model's name or path"),
    ({"chat": "yes"}, "chat must be true or false"),
    ({"system": 1}, "system must be a text"),
    ({"system": "Be brief.", "chat": False}, "a system message is part of a chat"),
    ({"system": "x" * 100_000}, "characters; allowed are"),
])  # fmt: skip
def test_a_bad_request_is_answered_with_a_sentence(server, change, sentence):
    status, answer = server.post("/api/runs", asked() | change)
    assert status == 422
    assert sentence in answer["message"]


@all_of("change, sentence", [
    ({"rules": ["clamped:width=1"], "verification": "block", "draft": "ngram"}, "needs a draft model"),
    ({"prompt": "a " * 3000}, "the prompt must be shorter than"),
    ({"target": "/no/such/model", "draft": "ngram"}, "there is no folder '/no/such/model'"),
    ({"system": "Be brief."}, "has no place for a system message"),  # the bundled target's template
])  # fmt: skip
def test_what_only_the_models_can_refuse_ends_the_stream_with_a_sentence(server, change, sentence):
    last = server.events(asked() | change)[-1]
    assert last["event"] == "error"
    assert sentence in last["message"]
    assert "Traceback" not in last["message"]
    assert server.events(asked(max_new_tokens=4))[-1]["event"] == "finished"  # and the seat is free


def test_a_chat_model_is_asked_by_its_template_unless_it_is_not_wanted(server, tmp_path):
    template = "{% for each in messages %}{{ each.role }}: {{ each.content }}{% endfor %}"
    target = save_target(tmp_path / "chat", template)
    changes = {"user: Hi": {}, "Hi": {"chat": False}, "system: Be brief.user: Hi": {"system": "Be brief."}}
    for prompt, change in changes.items():
        wanted = asked(prompt="Hi", target=target, max_new_tokens=2) | change
        started = next(event for event in server.events(wanted) if event["event"] == "started")
        assert started["sessions"][0]["prompt"] == prompt


def test_what_a_visitor_compares_first_shows_what_a_rule_does():
    start, pair = form(FormLimits(), models=False), load_pair()
    prompt, lossless = as_prompt(start["examples"][0]["question"]), {"rule": "lossless", "protect": None}
    answers = [generate(pair, prompt, seed=0, **RELAXED | settings) for settings in ({}, lossless)]
    relaxed, lossless = answers
    assert relaxed.metrics.relaxed > 0
    assert relaxed.metrics.steps < lossless.metrics.steps
    assert relaxed.token_ids[:8] != lossless.token_ids[:8]
    assert {extract_answer(each.text) for each in answers} == {start["examples"][0]["answer"]}


def test_models_by_name_need_leave():
    for change, sentence in (
        ({"target": "gpt2", "draft": "ngram"}, "target must be left empty"),
        ({"draft": "suffix:min_token_prob=0"}, "draft must be left empty"),
        ({"draft": "x"}, "draft"),
        ({"num_speculative_tokens": "auto:profile=/etc/passwd"}, "auto's profile must be left out"),
    ):
        with pytest.raises(ValueError, match=sentence):
            read_request(asked() | change, FormLimits(), models=False)
    assert read_request(asked(draft="ngram"), FormLimits(), models=False).draft == "ngram"
    assert read_request(asked(draft="suffix"), FormLimits(), models=False).draft == "suffix"
    with pytest.raises(ValueError, match="earlier shows users each other's answers"):
        read_request(asked(draft="suffix:earlier=9"), FormLimits(), models=True)


def test_there_is_one_request_a_rule_alike_but_for_the_rule():
    body = asked("cactus:delta=0.5", "clamped:width=1.0", top_k=5, num_speculative_tokens="auto", verification="token")
    first, second = read_request(body, FormLimits(), models=False).requests
    assert (str(first.rule), str(second.rule)) == tuple(body["rules"])
    assert first.num_speculative_tokens is not second.num_speculative_tokens  # each learns from its own answer
    values = [request.as_dict() | {"rule": ""} for request in (first, second)]
    assert values[0] == values[1]
    assert (values[0]["top_k"], values[0]["seed"]) == (5, 0)
    body = asked("clamped:width=1.0", "lossless", budget={"max_shift": 0.1, "expected_tokens": 40}, seed=None)
    drawn, again = (read_request(body, FormLimits(), models=False).requests for _ in range(2))
    assert drawn[0].seed == drawn[1].seed != again[0].seed
    assert drawn[0].budget == Budget(max_shift=0.1, expected_tokens=40)
    assert drawn[1].budget is None  # lossless has none to spend
