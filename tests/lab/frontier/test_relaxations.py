"""Relaxations: how a command line and a file say where a rule may relax, and for whom digits are proposed."""

from __future__ import annotations

import json

import pytest

from cactus_decoding import Request
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.frontier.relaxations import (
    EVERYWHERE,
    LOSSLESS,
    Relaxation,
    answers_are_numbers,
    asking,
    parse_policies,
)


def test_a_relaxation_is_its_rule_and_its_policy():
    plain, protected = (
        Relaxation("clamped:width=3.0"),
        Relaxation("clamped:width=3.0", relaxation_policy("digits", 0.02)),
    )
    assert len({plain, protected, Relaxation("clamped:width=3.0")}) == 2
    assert str(plain) == "clamped:width=3.0"
    assert str(protected) == "clamped:width=3.0 protecting digits above 0.02"
    assert plain.as_dict() == {"rule": "clamped:width=3.0"}  # as in files that know of no policy
    kept = protected.as_dict()
    assert (kept["rule"], kept["protect"], kept["protect_threshold"]) == ("clamped:width=3.0", "digits", 0.02)
    request = asking(Request(seed=3), protected, 4)
    assert (str(request.rule), request.policy, request.seed) == ("clamped:width=3.0", protected.policy, 3)
    assert asking(request, LOSSLESS, 0).policy == RelaxationPolicy()


def test_policies_of_a_command_line():
    assert parse_policies([]) == []
    assert parse_policies(["none", "digits", "none"]) == [EVERYWHERE, relaxation_policy("digits")]
    assert parse_policies(["none", "digits"], protect_threshold=0.1)[1].protection.threshold == 0.1
    for given, threshold, message in (
        (["none"], 0.1, "--protect-threshold is that of protected tokens"),
        ([""], None, "but is empty"),
        (["("], None, "is neither"),
        (["digits"], 1.5, "threshold"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_policies(given, protect_threshold=threshold)


def test_digits_are_proposed_where_answers_are_numbers(tmp_path):
    assert answers_are_numbers(parse_task("word_problems:split=validation", 5))
    path = tmp_path / "t.jsonl"
    for answer, extract, expected in ((7, "last_number", True), ("B", "letter", False), (None, "none", False)):
        path.write_text(json.dumps({"prompt": "?", "answer": answer} if answer else {"prompt": "?"}) + "\n")
        assert answers_are_numbers(parse_task(f"jsonl:path={path},extract={extract}")) == expected


def test_a_tokenizer_is_loaded_without_its_model(tmp_path):
    assert tokenizer_of("bundled").eos_token == "<eos>"
    with pytest.raises(ValueError, match="cannot load a tokenizer for the target"):
        tokenizer_of(str(tmp_path))
