"""Knobs are checked by what a class's source declares, as the class itself checks them, and nothing heavy is read."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cactus_decoding.arguments.declared import check_declared
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.drafting.registry import check_drafter_spelling, parse_drafter
from cactus_decoding.drafting.spelling import read_length, read_tree
from cactus_decoding.rules import RULES, parse_rule

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


WRONG_DRAFTERS = (
    "ngram:zzz=1",
    "ngram:max_ngram_size=2,min_ngram_size=3",
    "suffix:foo=1",
    "suffix:min_token_prob=2",
    "suffix:earlier",
    "early_exit",
    "early_exit:layers=0",
)
WRONG_LENGTHS = (
    "nonsense",
    "-3",
    "6.5",
    "fixed",
    "confidence:treshold=0.3",
    "confidence:threshold=2",
    "adaptive:max_draft_tokens=0",
    "auto:max_draft_tokens=-1",
    "tree:static=4.x",
)
WRONG_TREES = (
    "nonsense",
    "static",
    "static=0",
    "static=99.99",
    "static=2.2,drawn=-1",
    "best_first,nodes=0",
    "best_first,node=3",
    "adaptive,depth=101",
)


def told(check, text):
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the message is compared
        check(text)
    return str(error.value)


@pytest.mark.parametrize("text", WRONG)
def test_a_mistake_is_told_in_the_words_of_the_rule(text):
    assert told(parse_rule, text) == told(lambda given: check_declared("rule", given, RULES), text)


def test_mistaken_proposals_are_told_in_the_words_of_what_they_would_make():
    for text in WRONG_DRAFTERS:
        assert told(parse_drafter, text) == told(check_drafter_spelling, text)
    for wrong, read in ((WRONG_LENGTHS, read_length), (WRONG_TREES, read_tree)):
        for text in wrong:
            assert told(lambda given, read=read: read(given, parse), text) == told(
                lambda given, read=read: read(given, check_declared), text
            )
    assert told(parse_drafter, "ngram:zzz=1").startswith("unknown parameter 'zzz' in 'ngram:zzz=1'; parameters of")


def test_what_a_class_takes_passes():
    for rule in RULES.values():
        for preset in rule.presets:
            check_declared("rule", preset.spelling, RULES)
    check_declared("rule", "cactus:delta=1,divergence=total_variation", RULES)  # known to the rule alone
    for text in ("suffix", "suffix:earlier=9", "ngram:max_ngram_size=4", "early_exit:layers=99", "path/to/a:model"):
        check_drafter_spelling(text)
    for text in ("0", "6", "auto", "adaptive", "confidence:threshold=0.3", "tree:static=4.2.2.1"):
        read_length(text, check_declared)
    for text in ("static=4.2.2.1,drawn=0", "best_first,nodes=16", "adaptive", "adaptive,draft_cost=0.1"):
        read_tree(text, check_declared)


def test_a_mistake_does_not_wait_for_torch():
    code = f"""
import sys
from cactus_decoding.cli.app import run
commands = [("generate", "How many?"), ("eval", "--output", "new.jsonl")]
given = [
    *((command, "--rule", text) for text in {WRONG!r} for command in commands),
    *((command, "--draft", text) for text in {WRONG_DRAFTERS!r}
      for command in [*commands, ("serve", "some/model"), ("play",), ("frontier", "--output", "new.json")]),
    *((command, "--num-speculative-tokens", text) for text in {WRONG_LENGTHS!r} for command in commands),
    *((command, "--tree", text) for text in {WRONG_TREES!r} for command in commands),
    (("serve", "some/model"), "--num-speculative-tokens", "nonsense"),
    (("serve", "some/model"), "--tree", "static=2.2"),
]
for command, option, text in given:
    assert run([*command, option, text]) == 2, (command, option, text)
    assert "torch" not in sys.modules, (command, option, text)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_can_be_no_model_does_not_wait_for_torch(tmp_path):
    code = """
import sys
from cactus_decoding.cli.app import run
given = [
    ("generate", "How many?", "--target", "/nowhere"),
    ("generate", "How many?", "--target", "x.gguf"),
    ("generate", "How many?", "--draft", "ngrm"),
    ("generate", "How many?", "--draft", "bundled:wordy"),
    ("eval", "--output", "new.jsonl", "--target", "/nowhere"),
    ("eval", "--output", "new.jsonl", "--draft", "suffix", "--draft", "/nowhere"),
    ("frontier", "--output", "new.json", "--target", "/nowhere"),
    ("diagnose", "--target", "/nowhere"),
    ("tune", "x.gguf"),
    ("tune", "bundled", "/nowhere"),
    ("train-draft", "--target", "/nowhere", "--data", "prompts.jsonl", "--output", "trained"),
    ("learn-importance", "--target", "/nowhere", "--output", "new.safetensors"),
    ("play", "--target", "/nowhere"),
    ("serve", "x.gguf"),
    ("serve", "/nowhere"),
    ("serve", "some/model", "--draft", "/nowhere"),
    ("trace", "/nowhere.jsonl"),
]
for arguments in given:
    assert run(arguments) == 2, arguments
    assert "torch" not in sys.modules, arguments
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr.count("cactus: cannot load the ") == 15
