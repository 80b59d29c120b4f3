"""A rule's knobs are checked by what its source declares, as the rule itself checks them, and nothing heavy is read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cactus_decoding.rules import RULES, parse_rule
from cactus_decoding.rules.declared import check_declared

WRONG = (
    "cactus",
    "cactus:delta=x",
    "cactus:delta=-1",
    "cactus:delta=1,solver=exat",
    "cactus:delta=1,delta=2",
    "clamped",
    "clamped:width=501",
    "clamped:width=1,max_kl=1",
    "ensemble:weight=2",
    "lenience:lenience=0",
    "typical:alpha=-1",
    "top_k:k=0",
    "relaxed_greedy:margin=-1",
    "lossless:width=1",
)


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_told_in_the_words_of_the_rule(text):
    told = []
    for check in (parse_rule, check_declared):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared
            check(text)
        told.append(str(error.value))
    assert told[0] == told[1]


def test_what_a_rule_takes_passes():
    for rule in RULES.values():
        for preset in rule.presets:
            check_declared(preset.spelling)
    check_declared("cactus:delta=1,divergence=total_variation")  # known to the rule alone, by what it computes with
    check_declared("not_a_rule:x=1")  # another's to say


def test_a_mistake_does_not_wait_for_torch():
    code = f"""
import sys
from cactus_decoding.rules import parse_rule
for text in {WRONG!r}:
    try:
        parse_rule(text)
    except ValueError:
        assert "torch" not in sys.modules, text
    else:
        raise AssertionError(text)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
