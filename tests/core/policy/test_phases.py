"""Where a response may be relaxed, by the tokens before a position."""

import random
from itertools import pairwise

import pytest
from support.tables import all_of
from support.tiny_tokenizers import tiny_tokenizer

from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.vocabulary import Vocabulary

CHARACTERS = Vocabulary(tuple("<>/tx "))
MARKS = ("<t>", "</t>")


def ids(text: str) -> list[int]:
    return [CHARACTERS.texts.index(c) for c in text]


def slow(phases: Phases, prompt: str, response: str) -> list[bool]:
    """What `Phases` says, from the whole text before each position."""
    allowed = []
    for i in range(len(response)):
        before = prompt + response[:i]
        inside = phases.relax_within is None or before.rfind("<t>") > before.rfind("</t>")
        allowed.append(i >= phases.lossless_tokens and inside)
    return allowed


def test_the_prompt_may_open_a_span() -> None:
    phases = Phases(relax_within=MARKS)
    state = phases.begin(ids("x <t>"), CHARACTERS)
    assert phases.relaxable(state, ids("x</t>x"), CHARACTERS) == [True] * 5 + [False]


def test_marks_by_token_ids_look_at_no_text() -> None:
    words = Vocabulary(("<t>", "</t>", "<", "t>", "x"))
    by_text, by_ids = Phases(relax_within=MARKS), Phases(relax_within=((0,), (1,)))
    quoted = [2, 3, 4, 0, 4, 1, 4]  # the first span is spelled with other tokens
    assert by_text.relaxable(by_text.begin([], words), quoted, words) == [False, False, True, True, True, True, False]
    expected = [False, False, False, False, True, True, False]
    assert by_ids.relaxable(by_ids.begin([], words), quoted, words) == expected
    assert by_ids.relaxable(by_ids.begin([], Vocabulary(())), quoted, Vocabulary(())) == expected
    several = Phases(relax_within=((2, 3), (1, 4)))
    asked = [3, 2, 3, 4, -1, 1, 4, 4]
    assert several.relaxable(several.begin([], words), asked, words) == [False] * 3 + [True] * 4 + [False]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("closing", ["】", "»", "≠", "🌵"])
def test_a_mark_is_found_however_its_bytes_are_spelled(kind: str, closing: str) -> None:
    tokenizer = tiny_tokenizer(kind)
    words, phases = Vocabulary.of(tokenizer, len(tokenizer)), Phases(relax_within=("a", closing))
    inside = tokenizer(f"a{closing}", add_special_tokens=False).input_ids
    assert len(inside) > 2, "the mark has several tokens"
    said = phases.relaxable(phases.begin([], words), [*inside, inside[0], inside[0]], words)
    assert said == [False] + [True] * (len(inside) - 1) + [False, True]


def test_marks_that_overlap_are_read_from_left_to_right_however_tokens_are_cut() -> None:
    words, phases = Vocabulary(("a", "b", "aba", "ab", "ba")), Phases(relax_within=("ab", "ba"))
    for cut in ([0, 1, 0], [2], [3, 0], [0, 4]):
        assert phases.after(phases.begin([], words), cut, words) == (len(cut), True, "a")
        assert not phases.after(phases.begin([], words), [*cut, 1, 0], words).inside


@all_of("seed", range(40))
def test_it_agrees_with_reading_all_bytes_however_they_are_cut(seed: int) -> None:
    rng, marks = random.Random(seed), ("«a", "≠»")
    text = "".join([marks[0], *rng.choices(["«", "a", "≠", "»", "x", *marks], k=30)]).encode()
    cuts = sorted({0, len(text), *rng.sample(range(len(text)), 20)})
    parts = [text[a:b] for a, b in pairwise(cuts)]
    words = Vocabulary(tuple(each.decode(errors="replace") for each in parts), fragments=dict(enumerate(parts)))
    expected = []
    for end in cuts[:-1]:
        rest, inside = text[:end].decode(errors="ignore"), False
        while (mark := marks[inside]) in rest:
            rest, inside = rest.split(mark, 1)[1], not inside
        expected.append(inside)
    phases = Phases(relax_within=marks)
    assert phases.relaxable(phases.begin([], words), [*range(len(parts))], words) == expected
    assert True in expected


@all_of("seed", range(40))
def test_it_agrees_with_reading_the_whole_text_each_time(seed: int) -> None:
    rng = random.Random(seed)
    phases = Phases(rng.choice((0, 3, 11)), rng.choice((None, MARKS, MARKS)))
    parts = ("<t>", "</t>", "<", "t>", "/", "x", " ", "</", "<t")
    prompt, response = ("".join(rng.choices(parts, k=rng.randrange(12))) for _ in range(2))
    state, said, rest = phases.begin(ids(prompt), CHARACTERS), [], response
    while rest:  # as steps of a response would ask: some drafted tokens, of which some are kept
        drafted, kept = rng.randint(1, 5), rng.randint(1, 5)
        asked = phases.relaxable(state, ids(rest[:drafted]), CHARACTERS)
        kept = min(kept, len(asked))
        said += asked[:kept]
        state, rest = phases.after(state, ids(rest[:kept]), CHARACTERS), rest[kept:]
    assert said == slow(phases, prompt, response)
