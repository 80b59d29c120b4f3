"""One request: what it holds, what it refuses, and the way to and from a plain dict."""

from __future__ import annotations

import json
import math
import pickle

import pytest

from cactus_decoding import (
    Budget,
    ConfidenceStop,
    FixedLength,
    Lossless,
    NgramDrafter,
    Request,
    SamplingParams,
    StaticTree,
    parse_rule,
)
from cactus_decoding.core.drafting.registry import as_tree

FLAT = {
    "rule": "clamped:width=1.0",
    "budget_nats": 0.5,
    "max_shift": None,
    "expected_tokens": 60,
    "protect": "digits|negation",
    "protect_threshold": 0.05,
    "lossless_tokens": 8,
    "relax_within": ["<think>", "</think>"],
    "verification": "token",
    "num_speculative_tokens": "confidence:threshold=0.3",
    "tree": None,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.01,
    "max_new_tokens": 40,
    "stop": ["####"],
    "seed": 7,
}


def test_texts_and_numbers_become_objects():
    request = Request(rule="cactus:delta=1", budget=0.25, num_speculative_tokens="4", stop=["a"])
    assert request.rule == parse_rule("cactus:delta=1.0")
    assert request.budget == Budget(nats=0.25)
    assert request.num_speculative_tokens == FixedLength(4)
    assert request.stop == ("a",)
    assert Request() == Request(
        Lossless(), None, verification="token", num_speculative_tokens=6, sampling=SamplingParams()
    )


def test_a_request_goes_to_plain_json_and_back():
    request = Request.from_dict(FLAT)
    assert request.as_dict() == FLAT
    assert Request.from_dict(json.loads(json.dumps(request.as_dict()))) == request
    assert pickle.loads(pickle.dumps(request)) == request


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"budget": Budget(max_shift=0.1)},
        {"budget": 0.3, "rule": "cactus:delta=1.0"},
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": FixedLength(3), "verification": "block"},
        {"temperature": 0, "rule": "relaxed_greedy:margin=0.5", "budget": 1},
        {"budget": Budget(nats=math.inf)},
    ],
)
def test_every_request_survives_its_dict(given):
    request = Request.from_dict(given)
    assert Request.from_dict(request.as_dict()) == request


def test_numbers_of_proposals_stay_numbers_and_other_lengths_texts():
    assert Request(num_speculative_tokens=4).as_dict()["num_speculative_tokens"] == 4
    assert Request(num_speculative_tokens=ConfidenceStop(8)).as_dict()["num_speculative_tokens"] == (
        "confidence:max_draft_tokens=8"
    )
    tree = as_tree("best_first")
    assert Request(tree=tree).tree is tree


def test_equal_numbers_are_written_alike():
    assert Request.from_dict({"temperature": 1, "top_p": 1}).as_dict() == Request().as_dict()
    assert str(Request.from_dict({"temperature": 0}).as_dict()["temperature"]) == "0.0"


def test_strings_to_stop_at_may_come_from_any_iterable():
    assert Request(stop=(text for text in ["a", "b"])).stop == ("a", "b")


def test_a_request_or_its_parts_but_not_both():
    for given in ("cactus:delta=1", {"seed": 3}):
        with pytest.raises(TypeError, match="request must be a Request"):
            Request.of(given, {})
    request = Request(seed=3)
    assert Request.of(request, {}) is request
    assert Request.of(None, {"seed": 3}) == request
    with pytest.raises(TypeError, match="not both: seed"):
        Request.of(request, {"seed": 3})


REFUSED = {
    "unknown name": ({"topp": 0.9}, TypeError, "no 'topp'; known are rule, "),
    "unknown rule": ({"rule": "cactos"}, ValueError, "unknown rule 'cactos'"),
    "no length": ({"num_speculative_tokens": 2.5}, TypeError, "must be an integer, a draft length"),
    "two ways to give a budget": ({"budget": 0.5, "budget_nats": 0.1}, TypeError, "budget and budget_nats exclude"),
    "a budget and its pace": ({"budget": 0.5, "expected_tokens": 9}, TypeError, "budget and expected_tokens exclude"),
    "nats and another shift": ({"budget_nats": 5, "max_shift": 0.1}, ValueError, "either nats or max_shift"),
    "no stop": ({"stop": None}, ValueError, "stop must be a sequence"),
    "empty stop": ({"stop": [""]}, ValueError, "stop must be a sequence"),
    "block and Cactus": ({"verification": "block", "rule": "cactus:delta=1"}, ValueError, "does not depend"),
    "no way to verify": ({"verification": "blocks"}, ValueError, "token, block, joint, coupled, fly, but is 'blocks'"),
    "block and confidence": (
        {"verification": "block", "rule": "clamped:width=1", "num_speculative_tokens": "confidence"},
        ValueError,
        "a fixed number of proposals",
    ),
    "block and pace": (
        {"verification": "block", "rule": "clamped:width=1", "budget": Budget(nats=1, expected_tokens=9)},
        ValueError,
        "cannot pace",
    ),
    "a cap with a rule that samples": (
        {"rule": "cactus:delta=1", "budget": Budget(nats=1, max_relaxed=2)},
        ValueError,
        "max_relaxed counts the tokens",
    ),
    "pace without width": ({"rule": "cactus:delta=1", "budget_nats": 1, "expected_tokens": 9}, ValueError, "clamped:"),
    "greedy rule": ({"rule": "relaxed_greedy:margin=1"}, ValueError, "temperature 0"),
    "greedy rule in blocks": (
        {"rule": "relaxed_greedy:margin=1", "temperature": 0, "verification": "block"},
        ValueError,
        "must be 'token'",
    ),
    "greedy rule and a shift": (
        {"rule": "relaxed_greedy:margin=1", "temperature": 0, "budget": Budget(max_shift=0.1)},
        ValueError,
        "log-probability given up",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_together_is_refused_where_it_is_asked(case):
    given, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        Request.from_dict(given)


def test_lossless_blocks_may_vary_in_length():
    assert Request(verification="block", num_speculative_tokens="confidence").verification == "block"


def test_blocks_of_a_relaxed_rule_need_a_drafter_that_proposes_as_many_as_it_is_asked_for():
    Request(verification="block").check_drafter(NgramDrafter())
    Request(rule="clamped:width=1").check_drafter(NgramDrafter())
    with pytest.raises(TypeError, match="must be a subclass of"):
        Request().check_drafter(object())
    with pytest.raises(ValueError, match="needs a draft model"):
        Request(rule="clamped:width=1", verification="block").check_drafter(NgramDrafter())


def test_a_tree_takes_the_place_of_a_number():
    request = Request(tree="static=3.2")
    assert (str(request.tree), request.num_speculative_tokens, request.draft_length) == (
        "static=3.2", FixedLength(2), request.tree,
    )  # fmt: skip
    assert Request.from_dict(request.as_dict()) == request
    assert request.replace(seed=3).tree == request.tree
    assert request.proposing(4) == Request(num_speculative_tokens=4)
    assert Request(num_speculative_tokens=4).proposing(StaticTree("3.2")) == request
    with pytest.raises(ValueError, match="tree and num_speculative_tokens exclude each other"):
        Request(tree="static=3.2", num_speculative_tokens=5)
    with pytest.raises(TypeError, match="tree must be a tree's shape or its spelling, but is 3"):
        Request(tree=3)


@pytest.mark.parametrize(
    ("given", "said"), [("tree:static=3.2", "unknown draft length"), (StaticTree("3.2"), "give tree='static=3.2'")]
)
def test_a_number_is_no_tree(given, said):
    with pytest.raises(ValueError, match=said):
        Request(num_speculative_tokens=given)
