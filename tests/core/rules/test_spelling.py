"""A rule, its text, and what is said about text that spells none."""

from __future__ import annotations

import math
import pickle
from dataclasses import FrozenInstanceError, dataclass, fields, make_dataclass
from typing import Annotated, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from support.any_rule import rules_of
from support.rules_under_test import SPELLINGS
from support.tables import all_of

from cactus_decoding.core.declared import Setting
from cactus_decoding.core.divergences.f_divergences import DIVERGENCES
from cactus_decoding.core.rules import RULES, Cactus, ClampedRatio, Typical, as_rule, parse_rule
from cactus_decoding.core.spelling import parse, spell
from cactus_decoding.core.types import AcceptanceRule


@pytest.mark.parametrize("name", RULES)
@given(data=st.data())
def test_spelling_and_pickle_come_back(name: str, data: st.DataObject) -> None:
    rule = data.draw(rules_of(name))
    for again in (parse_rule(str(rule)), parse_rule(f"  {str(rule).replace(',', ' , ')}"), as_rule(str(rule))):
        assert again == rule
        assert hash(again) == hash(rule)
        assert str(again) == str(rule)
    assert pickle.loads(pickle.dumps(rule)) == rule
    assert as_rule(rule) is rule


@all_of("spelling", SPELLINGS)
def test_rules_are_frozen_and_follow_the_protocol(spelling: str) -> None:
    rule = parse_rule(spelling)
    assert isinstance(rule, AcceptanceRule)
    assert RULES[rule.name] is type(rule)
    for field in fields(rule):
        with pytest.raises(FrozenInstanceError):
            setattr(rule, field.name, 0.5)


def test_switches_are_spelled_true_or_false() -> None:
    @dataclass(frozen=True)
    class Lamp:
        lit: Annotated[bool, Setting("whether it is lit")] = False

    for text, lit in (("lamp", False), ("lamp:lit=true", True), ("lamp:lit=false", False)):
        assert parse("lamp", text, {"lamp": Lamp}) == Lamp(lit)
    assert [spell("lamp", Lamp(lit)) for lit in (True, False)] == ["lamp:lit=true", "lamp"]
    with pytest.raises(ValueError, match="lit must be true or false, but is 'yes'"):
        parse("lamp", "lamp:lit=yes", {"lamp": Lamp})


def test_different_parameters_make_different_rules() -> None:
    assert len({parse_rule(spelling) for spelling in SPELLINGS}) == len(SPELLINGS)
    assert Cactus(1.0) != Cactus(1.0, solver="exact")
    assert ClampedRatio(width=0.5) != ClampedRatio(max_kl=0.5)


def test_equal_rules_have_one_spelling() -> None:
    for delta in (1, 1.0, np.float64(1.0)):
        assert str(Cactus(delta)) == "cactus:delta=1.0"
    assert str(ClampedRatio(width=2)) == "clamped:width=2.0"
    assert str(Cactus(0.1, max_ratio=math.inf)) == "cactus:delta=0.1"
    assert str(Cactus(0.1, "exact", "kl", 2)) == "cactus:delta=0.1,solver=exact,max_ratio=2.0"
    assert str(Typical()) == "typical"


# text, and what its message must contain: the argument, the value that was given, and what is allowed
BAD_TEXTS = [
    ("", ["''", *RULES]),
    ("speculative", ["'speculative'", *RULES]),
    ("cactus", ["'cactus'", "delta"]),
    ("cactus:", ["lacks delta"]),
    ("cactus:1.0", ["'1.0'", "parameter=value", "delta, solver, divergence, max_ratio"]),
    ("cactus:delta=1,epsilon=2", ["unknown parameter 'epsilon'", "delta, solver, divergence, max_ratio"]),
    ("cactus:delta=1,name=x", ["unknown parameter 'name'", "delta, solver, divergence, max_ratio"]),
    ("lossless:delta=1", ["unknown parameter 'delta'", "none"]),
    ("cactus:delta=1,delta=1", ["delta", "twice"]),
    ("cactus:delta=big", ["delta", "a number", "'big'"]),
    ("cactus:delta=", ["delta", "a number", "''"]),
    ("cactus:delta=-0.1", ["delta", "-0.1", "[0, inf)"]),
    ("cactus:delta=1,solver=newton", ["solver", "'newton'", "taylor, exact"]),
    ("cactus:delta=1,divergence=KL", ["divergence", "'KL'", *DIVERGENCES]),
    ("cactus:delta=1,divergence=total_variation", ["total_variation", "exact"]),
    ("lenience:lenience=0", ["lenience", "0.0", "(0, 1]"]),
    ("clamped", ["width", "max_kl", "None"]),
    ("clamped:width=1,max_kl=1", ["width", "max_kl", "1.0"]),
    ("clamped:width=501", ["width", "501", "[0, 500]"]),
    ("typical:recovery=argmax", ["recovery", "'argmax'", "greedy, sample"]),
    ("top_k:k=0", ["k must", "0", "at least 1"]),
    ("top_k:k=1.5", ["k must", "an integer", "'1.5'"]),
    ("top_k:k=3,residual=draw", ["residual", "'draw'", "sample, mask"]),
]


@all_of("text, needles", BAD_TEXTS)
def test_bad_text_is_refused_with_what_is_allowed(text: str, needles: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - every message is looked at below
        parse_rule(text)
    for needle in needles:
        assert needle in str(caught.value)


@all_of(
    "make, message",
    [
        (lambda: parse_rule(None), "must be a string"),
        (lambda: as_rule(0.5), r"rule must be an acceptance rule or its spelling, but is 0\.5"),
        (lambda: as_rule(Cactus), "rule must be an acceptance rule"),
    ],
)
def test_wrong_types_are_refused(make, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_words_to_choose_from_are_listed_where_another_is_spelled():
    kind = make_dataclass(
        "Kind", [("size", Annotated[Literal["small", "large"], Field(description="how large")], "small")]
    )
    assert parse("thing", "kind:size=large", {"kind": kind}) == kind("large")
    with pytest.raises(ValueError, match=r"size must be one of small, large, but is 'huge' in 'kind:size=huge'"):
        parse("thing", "kind:size=huge", {"kind": kind})


def test_integers_are_known_whether_or_not_annotations_are_postponed():
    kind = make_dataclass("Kind", [("size", int), ("name", str, "none")])
    parsed = parse("thing", "kind:size=3,name=a", {"kind": kind})
    assert (parsed.size, type(parsed.size), parsed.name) == (3, int, "a")
