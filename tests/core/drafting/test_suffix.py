"""A drafter that proposes what most places agree on, as long as that is likely, and what it remembers."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.loop_runs import run, tokens
from support.pass_times import PASS_TIMES
from support.tiny_models import tiny_llama

from cactus_decoding import SamplingParams, StaticTree, SuffixDrafter
from cactus_decoding.core.drafting.lookup import Answers
from cactus_decoding.core.drafting.suffix_index import SuffixIndex
from cactus_decoding.engines.transformers.cached_model import CachedModel

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def proposed(drafter: SuffixDrafter, text: list[int], limit: int = 8) -> list[int]:
    return drafter.propose(text, limit, lambda logits, _: logits, None).token_ids


def answer(drafter: SuffixDrafter, prompt: list[int], token_ids: list[int]) -> None:
    drafter.begin_response(None, 4)
    proposed(drafter, prompt)
    proposed(drafter, [*prompt, *token_ids])


@given(TEXTS, st.floats(0, 1))
def test_it_ends_before_it_is_unlikely_to_be_kept(text: list[int], least: float) -> None:
    _, token_ids, support = SuffixIndex(text).longest(8)
    chances = [prod(each / (each + 1) for each in support[: k + 1]) for k in range(len(token_ids))]
    found = proposed(SuffixDrafter(least), text)
    assert found == token_ids[: len(found)]
    assert all(chance >= least * (1 - 1e-12) for chance in chances[: len(found)])
    assert not chances[len(found) :] or chances[len(found)] <= least * (1 + 1e-12)


def test_a_tree_has_what_is_agreed_on_first() -> None:
    drafter = SuffixDrafter()
    drafter.begin_response(None, StaticTree("2.1"))
    proposal = drafter.propose([1, 4, 5, 1, 3, 6, 1, 4, 7, 1], 2, lambda logits, _: logits, None)
    assert (proposal.token_ids, proposal.parents) == ([4, 7, 3, 6], [-1, 0, -1, 2])


def test_earlier_answers_count_where_that_is_asked_for() -> None:
    forgetful, drafter = SuffixDrafter(), SuffixDrafter(earlier=100)
    for each in (forgetful, drafter):
        answer(each, [1, 2], [5, 6, 7, 8])
        each.begin_response(None, 4)
    assert proposed(forgetful, [9, 5, 6]) == []
    assert proposed(drafter, [9, 5, 6]) == [7, 8]
    assert proposed(drafter, [9, 1]) == []  # what was asked is none of it
    assert proposed(drafter.twin(), [9, 5, 6]) == []


@pytest.mark.parametrize("length", ["4", f"auto:profile={PASS_TIMES}"])
def test_an_answer_that_is_asked_for_again_takes_fewer_steps(length: str) -> None:
    target = CachedModel(tiny_llama(0))
    greedy = {"sampling": SamplingParams(temperature=0), "k": length, "length": 30}
    for drafter, fewer in ((SuffixDrafter(), False), (SuffixDrafter(earlier=100), True)):
        first, second = (run(target, drafter, **greedy) for _ in range(2))
        assert tokens(first) == tokens(second)
        assert (len(second) < len(first)) == fewer


def test_one_answer_does_not_run_into_the_next() -> None:
    drafter = SuffixDrafter(earlier=100)
    answer(drafter, [1], [5, 6])
    answer(drafter, [1], [7, 8])
    drafter.begin_response(None, 4)
    assert proposed(drafter, [9, 5]) == [6]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), max_size=20), st.integers(1, 40))
def test_no_more_is_remembered_than_was_asked_for(answers: list[list[int]], limit: int) -> None:
    kept = Answers()
    for each in answers:
        kept.keep(each, limit)
        whole = kept.index.token_ids
        assert len(whole) <= limit
        assert whole == SuffixIndex(whole).token_ids
        latest = each[max(0, len(each) + 1 - limit) :]
        assert whole[-len(latest) - 1 : -1] == latest


@pytest.mark.parametrize("knobs", [{"earlier": 1.5}, {"min_token_prob": "1"}])
def test_knobs_are_checked(knobs: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        SuffixDrafter(**knobs)
