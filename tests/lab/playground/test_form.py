"""What the playground's page offers, from the classes themselves."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from cactus_decoding import RULES, Request, parse_rule
from cactus_decoding.lab.playground.form import FormLimits, form, read_request, rule
from cactus_decoding.zoo import RELAXED


@pytest.mark.parametrize("name", RULES)
def test_rules_are_described_by_their_own_code(name):
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


def test_rules_have_the_kinds_that_the_docs_name():
    page = (Path(__file__).parents[3] / "docs/rules/index.md").read_text(encoding="utf-8")
    named = {
        name: kind
        for names, kind in re.findall(r"^\| (\[`.*?) \| (truncation|collaboration)", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    kinds = {name: described.kind for name, described in RULES.items() if described.kind}
    assert kinds == named | {"lossless": "exact"}


@pytest.mark.parametrize("name", RULES)
def test_choices_and_ranges_are_those_that_the_rule_allows(name):
    described = rule(name)
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


def test_a_pair_of_the_user_begins_with_what_pays():
    start = form(FormLimits(), models=False)["start"]
    assert form(FormLimits(), models=False, proposals="auto")["start"] == start | {"num_speculative_tokens": "auto"}


def test_the_form_is_json_and_names_every_rule():
    offered = json.loads(json.dumps(form(FormLimits(), models=False), allow_nan=False))
    assert [each["name"] for each in offered["rules"]] == list(RULES)
    assert len({each["question"] for each in offered["examples"]}) == len(offered["examples"])
    fields = [field for part in offered["settings"] for field in part["fields"]]
    assert all(field["doc"] for field in fields)
    assert {field["needs"] for field in fields} == {"", "protect", "recurring"}  # no file is read by name


@pytest.mark.parametrize("models", [True, False])
def test_what_the_form_begins_with_is_a_request(models):
    fields = [field for part in form(FormLimits(), models=models)["settings"] for field in part["fields"]]
    began = {field["name"]: field["start"] for field in fields if field["start"] != ""}
    kinds = {field["name"]: {"int": int, "float": float}.get(field["kind"], str) for field in fields}
    body = {"prompt": "Hi", "rules": [RELAXED["rule"]]} | {name: kinds[name](text) for name, text in began.items()}
    [request] = read_request(body, FormLimits(), models=models).requests
    assert request == Request.from_dict(RELAXED | {"seed": 0})
