"""Where a response may be relaxed, by the tokens before a position."""

import random

import pytest

from cactus_decoding.budgets.phases import Phases
from cactus_decoding.budgets.vocabulary import Vocabulary

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


@pytest.mark.parametrize("seed", range(40))
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
