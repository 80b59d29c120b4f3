"""Responses that are followed as an engine adds to them, against the phases of a whole text."""

from __future__ import annotations

import torch

from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm.batched_policy import FollowedResponse, append_padding_token

WORDS = Vocabulary(("<", "t>", "</", "x", "<t>", "</t>", "a<t", ">"))
MARKS = ("<t>", "</t>")
PHASES = (Phases(3), Phases(0, MARKS), Phases(4, MARKS))


def tokens(seed: int, count: int) -> list[int]:
    return torch.randint(len(WORDS.texts), (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_step_by_step_it_says_what_the_whole_text_says() -> None:
    both = set()
    for seed in range(30):
        prompt, text = tokens(seed, 6), tokens(100 + seed, 24)
        for phases in PHASES:
            whole = phases.relaxable(phases.begin(prompt, WORDS), text, WORDS)
            output_ids: list[int] = []
            response = FollowedResponse(phases, append_padding_token(WORDS), prompt, output_ids)
            for begin in range(0, len(text), 3):  # as many as were drafted are added
                assert response.relaxable(text[begin : begin + 3]) == whole[begin : begin + 3]
                output_ids += text[begin : begin + 3]
            both |= set(whole)
    assert both == {False, True}


def test_a_response_that_was_taken_out_and_is_back_goes_on_where_it_was() -> None:
    prompt, text = tokens(1, 5), tokens(2, 12)
    for phases in PHASES:
        through = FollowedResponse(phases, append_padding_token(WORDS), prompt, list(text))
        again = FollowedResponse(phases, append_padding_token(WORDS), prompt, output_ids := list(text))
        further = tokens(3, 6)
        assert through.relaxable(further) == again.relaxable(further)
        output_ids += [7, 7]
        again.relaxable(further)
        del output_ids[len(text) :]  # what was sampled is taken back
        assert through.relaxable(further) == again.relaxable(further)


def test_what_is_not_known_yet_is_lossless_and_what_is_no_token_says_nothing() -> None:
    response = FollowedResponse(Phases(1, MARKS), append_padding_token(WORDS), [4, 999], output_ids := [])
    assert response.relaxable([3, 999, 5, 3]) == [False, True, True, False]
    output_ids += [3, -1]
    assert response.relaxable([3, 3]) == [False, False]
    output_ids[1] = 3
    assert response.relaxable([3, 3]) == [True, True]


def test_a_mark_is_found_in_tokens_that_are_parts_of_characters() -> None:
    words = Vocabulary(("«", "\ufffd", "\ufffd"), fragments={1: b"\xc2", 2: b"\xbb"})
    response = FollowedResponse(Phases(0, ("«", "»")), append_padding_token(words), [0], [])
    assert response.relaxable([0, 1, 2, 0]) == [True, True, True, False]


def test_a_response_is_settled_once_all_that_follows_may_be_relaxed() -> None:
    counted = FollowedResponse(Phases(2), append_padding_token(None), [1], output_ids := [])
    assert counted.relaxable([5, 5, 5]) == [False, False, True]
    assert not counted.settled
    output_ids += [5, 5]
    assert counted.relaxable([5]) == [True]
    assert counted.settled
    del output_ids[1:]
    assert not counted.settled
    assert not FollowedResponse(Phases(0, MARKS), append_padding_token(WORDS), [4], []).settled
