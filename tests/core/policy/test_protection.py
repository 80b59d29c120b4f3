"""Which tokens a pattern protects, in vocabularies of several kinds, and what is refused."""

import math
import re
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.decisions import chain_rows
from support.tiny_tokenizers import TOKENIZERS, tiny_tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from cactus_decoding import Lossless, load_pair
from cactus_decoding.core.policy.position import Position
from cactus_decoding.core.policy.protection import PATTERNS, Protection, may_relax
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.types import ROOT

SAID = {
    "digits": ("7", " 12", "x3", "٣"),
    "numbers_and_operators": ("7", " +", "*", "<=", "÷"),
    "json": ("{", '"', " true", ":", "0", "],"),
    "code": ("(", "_", "\n", "    ", "==", "3"),
    "negation": (" not", "No", " never", "n't", "'t", "cannot", "don’t"),
}
UNSAID = {
    "digits": (" cats", "", "-", "five"),
    "numbers_and_operators": (" plus", ".", ","),
    "json": (" truest", "word", " a"),
    "code": (" word", "ab"),
    "negation": ("'ts", " note", "nowhere", "knot", " nevertheless"),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_a_named_set_protects_what_it_says(name: str) -> None:
    words = Vocabulary((*SAID[name], *UNSAID[name]))
    assert Protection(name).mask(words).tolist() == [True] * len(SAID[name]) + [False] * len(UNSAID[name])


def test_named_sets_join() -> None:
    words = Vocabulary(("7", " not", "cat"))
    assert Protection("digits|negation").mask(words).tolist() == [True, True, False]
    assert Protection("digits|cat").mask(words).tolist() == [True, False, True]  # a set and an expression
    assert Protection("(?:digits)|cat").mask(words).tolist() == [False, False, True]  # two expressions


def test_control_tokens_are_never_protected() -> None:
    words = Vocabulary(("<eos>", "<b>", "x"), control=frozenset({0}))
    assert Protection("<").mask(words).tolist() == [False, True, False]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("sign", [*"×÷±≤≥≠", "】", "«", "🌵"])
def test_each_token_of_a_protected_character_is_protected(kind: str, sign: str) -> None:
    tokenizer = tiny_tokenizer(kind)
    words = Vocabulary.of(tokenizer, len(tokenizer))
    pattern = "numbers_and_operators" if sign in "×÷±≤≥≠" else sign
    inside = tokenizer(f"a{sign}", add_special_tokens=False).input_ids[1:]
    assert b"".join(map(words.bytes_of, inside)) == sign.encode()
    assert len(inside) > 1, "it has several tokens"
    assert Protection(pattern).mask(words)[inside].all()


def test_a_part_is_protected_where_it_can_be_one_of_a_protected_character() -> None:
    of_sign = [b"\xe2", b"\xe2\x89", b"\xa0", b"x\xe2\x89", b"\x89\xa0y", b"\xa0\xe3"]
    spelled = [*of_sign, b"\xe3", b"\x8a", b"\xe2\x8a", "é".encode()]
    texts = tuple(each.decode(errors="replace") for each in spelled)
    words = Vocabulary(texts, fragments=dict(enumerate(spelled[:-1])))
    assert Protection("≠").mask(words).tolist() == [each in of_sign for each in spelled]
    assert Protection("é").mask(words).tolist() == [False] * 9 + [True]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize(("pattern", "text"), [("negation", "n’t"), ("不是", "不是"), (r"n\u2019t", "n’t")])
def test_characters_that_a_pattern_writes_out_are_protected_among_others(kind: str, pattern: str, text: str) -> None:
    tokenizer = tiny_tokenizer(kind)
    words = Vocabulary.of(tokenizer, len(tokenizer))
    inside = [token for token in tokenizer(f"a{text}", add_special_tokens=False).input_ids if token in words.fragments]
    assert len(inside) == len(text.replace("n", "").replace("t", "").encode())
    mask = Protection(pattern).mask(words)
    assert mask[inside].all()
    assert not mask.all()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_digits_are_found_in_tokenizers_of_each_kind(kind: str) -> None:
    tokenizer = tiny_tokenizer(kind)
    mask = Protection("digits").mask(Vocabulary.of(tokenizer, len(tokenizer) + 3))
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    control = set(tokenizer.all_special_ids)
    byte = re.compile(r"<0x3[0-9]>")  # how some vocabularies spell the bytes of digits
    digits = "".join(chr(number) for number in range(0x80, sys.maxunicode) if chr(number).isdecimal())
    of_others = set(digits.encode())
    parts = (
        {f"<0x{each:02X}>" for each in of_others}
        if kind == "byte_fallback"
        else {bytes_to_unicode()[each] for each in of_others}
    )
    expected = [
        token not in control
        and (
            bool(byte.fullmatch(name))
            or name in parts
            or (any(c in "0123456789" for c in name) and not re.fullmatch(r"<0x..>", name))
        )
        for token, name in enumerate(names)
    ]
    assert mask.tolist() == [*expected, False, False, False]
    assert any(expected)


@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "byte_fallback"])
def test_a_leading_space_is_part_of_a_tokens_text(kind: str) -> None:
    tokenizer = tiny_tokenizer(kind)
    texts = Vocabulary.of(tokenizer, len(tokenizer)).texts
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    spaced = [token for token, name in enumerate(names) if name[0] in "Ġ▁" and name[1:].isascii()]
    assert spaced
    assert all(texts[token] == f" {names[token][1:]}".replace("▁", " ") for token in spaced)


def test_the_texts_are_made_once() -> None:
    tokenizer = load_pair().tokenizer
    assert Vocabulary.of(tokenizer, 700) is Vocabulary.of(tokenizer, 700)
    assert Vocabulary.of(tokenizer, 700) is not Vocabulary.of(tokenizer, 701)
    words = Vocabulary.of(tokenizer, 700)
    assert Protection("digits").mask(words) is Protection("digits").mask(words)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"protect": ""}, ValueError, "is empty"),
        ({"protect": "(["}, ValueError, "neither"),
        ({"protect": "a{99999999999}"}, ValueError, "neither"),
        ({"protect": 3}, TypeError, "must be a text"),
        ({"protect": "digit"}, ValueError, "no set of tokens named 'digit'; did you mean 'digits'"),
        ({"protect": "json|negations"}, ValueError, "did you mean 'negation'"),
        ({"relax_within": ["think>", "/think>"]}, ValueError, "neither has the other in it"),
        ({"relax_within": ["```\n", "```"]}, ValueError, "neither has the other in it"),
        ({"protect_threshold": 0.1}, ValueError, "protect is None"),
        ({"relax_within": "<think>"}, TypeError, "two different texts"),
        ({"relax_within": ["<a>", "<a>"]}, ValueError, "two different texts"),
    ],
)
def test_bad_input_is_refused(given: dict, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        relaxation_policy(**given)


@given(st.floats(0, 1.001), st.floats(0, 1))
def test_rules_may_judge_up_to_the_threshold_and_anything_at_1(mass: float, threshold: float) -> None:
    expected = min(mass, 1.0) <= threshold
    masses, thresholds = (torch.tensor([each, math.nan], dtype=torch.float64) for each in (mass, threshold))
    assert may_relax(mass, threshold) is expected
    assert may_relax(masses, threshold).tolist() == [expected, threshold == 1]
    assert may_relax(masses, thresholds).tolist() == [expected, False]


def test_a_row_that_was_rounded_up_is_not_protected_at_a_threshold_of_1() -> None:
    row = torch.tensor([[0.0, *[1 / 3 * (1 + 1e-6)] * 3]])
    position = chain_rows(row, None, [0])
    words = Vocabulary(("a", "1", "2", "3"))
    for threshold, relaxes in ((1.0, True), (math.nextafter(1.0, 0.0), False)):
        policy = RelaxationPolicy(Protection("digits", threshold)).fit_vocabulary(words)
        assert policy.token_ids is not None
        at = Position(position, ROOT)
        assert at.mass(policy.token_ids) > 1
        assert policy.relaxes(Lossless(), policy.begin([]), at) == relaxes


@pytest.mark.parametrize(("pattern", "said"), [("zebra", "none of the 2"), (".", "all 2 tokens")])
def test_a_pattern_that_protects_nothing_or_all_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Protection(pattern).mask(Vocabulary(("a", "b", "")))


def test_a_policy_that_forbids_nothing_needs_no_tokenizer() -> None:
    assert RelaxationPolicy().fit(None, 3) is None
    with pytest.raises(TypeError, match="tokenizer"):
        relaxation_policy("digits").fit(None, 3)
