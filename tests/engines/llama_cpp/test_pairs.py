"""Requests that are answered at a time: each is what it is alone, and who is served by what has been read."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest
import torch
from support.interruptions import lines_of
from support.patience import PATIENCE

from cactus_decoding.engines.llama_cpp import pairs as seats_module
from cactus_decoding.engines.llama_cpp.models import model as model_module
from cactus_decoding.engines.llama_cpp.models import passes
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.engines.llama_cpp.server.completion import Completion, prompts_of, read_completion
from cactus_decoding.zoo.word_problems import EXAMPLES

USUAL = {"num_speculative_tokens": 4}
REQUESTS = [
    {"prompt": EXAMPLES[0].prompt, "seed": 1, "temperature": 1.2},
    {"prompt": EXAMPLES[1].prompt, "seed": 2, "acceptance_rule": "cactus:delta=1", "budget": 0.3, "protect": "digits"},
    {"prompt": EXAMPLES[2].prompt, "temperature": 0, "stop": ["."], "n": 2, "logprobs": 1},
    {"messages": [{"role": "user", "content": EXAMPLES[0].question}], "seed": 3, "acceptance_rule": "clamped:width=2"},
]
"""Each with a rule, a seed, a budget and an end of its own."""


@pytest.fixture(scope="module")
def seats(gguf):
    """Places for as many as there are requests, in float32 whose rows do not depend on who else is read."""
    files = parse_gguf(f"{gguf('target')}:cache=float32,context_size=512"), f"{gguf('worded')}:cache=float32"

    def load(parallel, kept_prompts=0, draft=None):
        return PairPool.load(files[0], draft or files[1], parallel, kept_prompts)

    return load


def answer(seats, body):
    asked = read_completion({"max_tokens": 40} | body, USUAL, chat="messages" in body, pair=seats.pairs[0])
    prompts = prompts_of(seats.pairs[0], asked)
    with seats.take(prompts[0], threading.Event()) as pair:
        whole = Completion(pair, asked, prompts, "m").whole()
    choices = whole["choices"]
    for choice in choices:
        choice["logprobs"] = choice["logprobs"] and choice["logprobs"]["tokens"]
    del whole["usage"]["prompt_tokens_details"]  # what was in the cache depends on who came before
    return choices, whole["usage"]


@pytest.mark.parametrize("draft", [None, "suffix"])
def test_each_is_answered_as_if_it_were_alone(seats, draft, monkeypatch):
    alone = seats(1, draft=draft)
    expected = [answer(alone, body) for body in REQUESTS]
    together, widths, read = seats(len(REQUESTS), draft=draft), [], Context.read

    def noted(self, portions):
        widths.append(len(portions))
        return read(self, portions)

    monkeypatch.setattr(Context, "read", noted)
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        assert [*pool.map(lambda body: answer(together, body), REQUESTS)] == expected
    assert max(widths) > 1
    assert not any(map(together._is_held, together.pairs))


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interruption_at_any_line_loses_no_seat_and_stops_nobody_else(seats, every):
    """Of two that are read together one is interrupted; the other is answered, or hears of it."""
    both, bodies = seats(2, kept_prompts=2), [body | {"max_tokens": 3} for body in REQUESTS[:2]]
    files = [passes.__file__, seats_module.__file__, model_module.__file__]
    expected = [answer(seats(1), body) for body in bodies]

    def other():
        try:
            return answer(both, bodies[1])
        except RuntimeError as error:
            return expected[1] if "was interrupted" in str(error) else error

    with ThreadPoolExecutor(1) as pool:
        strike, struck = 1, True
        while struck:
            beside = pool.submit(other)
            try:
                lines_of(lambda: answer(both, bodies[0]), files, strike)
                struck = False
            except KeyboardInterrupt:
                strike += every
            assert beside.result(PATIENCE) == expected[1], strike
            assert not any(map(both._is_held, both.pairs)), strike
            assert (both._passes._responses, both._passes._waiting) == (set(), {}), strike
            assert answer(both, bodies[0]) == expected[0], strike
    assert strike > 40


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_pair_that_an_answer_was_left_on_is_whole_for_the_next(seats, parallel):
    """Its generator is suspended, and still referred to."""
    places = seats(parallel, kept_prompts=2 * parallel)
    expected = answer(places, REQUESTS[0])
    asked, left = read_completion(REQUESTS[1] | {"max_tokens": 40}, USUAL, chat=False, pair=places.pairs[0]), []
    for pair in places.pairs:
        prompts = prompts_of(pair, asked)
        with places.take(prompts[0], threading.Event()) as taken:
            left.append(Completion(taken, asked, prompts, "m").chunks())
            next(left[-1])
    for _ in places.pairs:
        assert answer(places, REQUESTS[0]) == expected


def test_a_conversation_comes_back_to_what_has_read_it_and_others_do_not_overwrite_it(seats):
    both = seats(2, kept_prompts=2)
    first, second = both.pairs
    never = threading.Event()
    ids = [first.tokenizer(EXAMPLES[i].prompt).input_ids for i in range(3)]

    def read(text):
        with both.take(text, never) as pair:
            pair.target.read_on(text)
            pair.target.append(text[pair.target.length :], 1)
            return pair

    assert (read(ids[0]), read(ids[1])) == (first, second)
    assert read(ids[0] + [5]) is first
    assert read(ids[1] + [6]) is second
    assert read(ids[2]) is first  # which was used longest ago
    with both.take(ids[2], never) as held, both.take(ids[2], never) as other:
        assert (held, other) == (first, second)
    assert [each.kept_prompts for each in seats(2, kept_prompts=0).pairs] == [0, 0]


TEXT = [*range(100, 180)]  # tokens that no prompt begins with


def begin(pair, text):
    """Read a text as a response does; return how much of it target and draft had, and the target's last row."""
    had, rows = [], []
    for model in (pair.target, pair.drafter.model_cache):
        model.recall(text)
        had.append(model.read_on(text))
        rows.append(model.append(text[had[-1] :], 1)[0])
    return had, rows


def test_a_text_is_read_on_behind_what_others_read_who_are_busy(seats):
    """Their live text, and copies beside it; the rows are those of a text that is read whole."""
    expected = begin(seats(2, kept_prompts=2).pairs[0], [*TEXT, 1, 2, 3])[1]
    places, never = seats(2, kept_prompts=4), threading.Event()
    for aside in (False, True):
        for pair in places.pairs:
            pair.forget()
        with places.take(TEXT, never) as busy, places.take(TEXT, never) as other:
            begin(busy, [*TEXT, 7, 8])
            if aside:
                begin(busy, [9] * 30)
            had, rows = begin(other, [*TEXT, 1, 2, 3])
            assert had == [len(TEXT)] * 2
            for row, whole in zip(rows, expected, strict=True):
                torch.testing.assert_close(row, whole, rtol=0, atol=1e-5)
            # both go on by themselves
            assert begin(busy, [*TEXT, 7, 8, 9])[0] == [len(TEXT) + 2] * 2
            assert begin(other, [*TEXT, 1, 2, 3, 4])[0] == [len(TEXT) + 3] * 2


def test_nothing_is_copied_from_others_where_it_may_not_be_or_does_not_pay(seats):
    never = threading.Event()

    def had_by_other(kept_prompts, shared=80, owners=(None, None)):
        places = seats(2, kept_prompts=kept_prompts)
        with places.take(TEXT, never, owners[0]) as busy, places.take(TEXT, never, owners[1]) as other:
            begin(busy, TEXT)
            return begin(other, [*TEXT[:shared], 1, 2, 3])[0]

    assert had_by_other(2) == [len(TEXT)] * 2
    assert had_by_other(0) == [0, 0]
    assert had_by_other(2, shared=3) == [0, 0]
    assert had_by_other(2, owners=(1, 2)) == [0, 0]
    assert had_by_other(2, owners=(1, 1)) == [len(TEXT)] * 2


def test_of_a_text_whose_end_is_just_being_forgotten_the_rest_is_taken(seats):
    """The other thread has forgotten it in llama.cpp, and not said so yet."""
    expected = begin(seats(2, kept_prompts=2).pairs[0], TEXT)[1]
    places, never = seats(2, kept_prompts=2), threading.Event()
    with places.take(TEXT, never) as busy, places.take(TEXT, never) as other:
        begin(busy, TEXT)
        for model in (busy.target, busy.drafter.model_cache):
            model._text.forget_from(40)
        had, rows = begin(other, TEXT)
        assert had == [40, 40]
        for row, whole in zip(rows, expected, strict=True):
            torch.testing.assert_close(row, whole, rtol=0, atol=1e-5)


def test_a_copy_that_fails_is_no_fault_of_the_request(seats, monkeypatch):
    places, never = seats(2, kept_prompts=2), threading.Event()

    def refuse(self, sequence, saved, *, partial=False):
        raise RuntimeError("no")

    with places.take(TEXT, never) as busy, places.take(TEXT, never) as other:
        begin(busy, TEXT)
        monkeypatch.setattr(Context, "restore", refuse)
        assert begin(other, TEXT)[0] == [0, 0]


def test_what_is_long_is_not_copied_for_little_nor_thrown_away_for_a_copy(seats):
    """Of two that share as much the shorter is copied; a conversation that goes on elsewhere stays where it is."""
    places, never = seats(3, kept_prompts=3), threading.Event()
    first, second, third = places.pairs
    with places.take(TEXT, never) as held:
        begin(held, [*TEXT[:20], *[7] * 200])
    with places.take(TEXT, never) as held:
        assert held is second  # as what the first has read would be lost
        assert begin(held, TEXT)[0] == [0, 0]  # and all of it be copied for 20 tokens
    assert first.target.length == 220
    other = [*TEXT, *[8] * 20]
    with places.take(other, never) as held:
        assert held is second  # of which nothing is lost
        begin(held, other)
    with places.take(TEXT, never) as held:
        assert held is third
        assert begin(held, [*TEXT[:60], 5])[0] == [60, 60]


def test_pairs_are_freed_with_their_pool_without_a_search_for_cycles(seats):
    gc.collect()
    gc.disable()
    try:
        places = seats(2, kept_prompts=2)
        gone = [ref(pair.target) for pair in places.pairs]
        del places
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("draft", [None, "suffix"])
def test_each_is_answered_as_if_it_were_alone_behind_the_same_beginning(seats, draft):
    """What is copied while others are answered: the rows differ by their last bits, and no token of these does."""
    tools = " ".join(each.prompt for each in EXAMPLES[1:4])
    bodies = [
        {"prompt": f"{tools} {EXAMPLES[number % 3].prompt}", "temperature": 0, "max_tokens": 12 + 5 * number}
        for number in range(8)
    ]
    expected = [answer(seats(1, draft=draft), body) for body in bodies]
    together = seats(4, kept_prompts=4, draft=draft)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert [*pool.map(lambda body: answer(together, body), bodies)] == expected
    assert max(pair.target.num_reused for pair in together.pairs) > 16


@pytest.mark.parametrize(("parallel", "kept_prompts"), [(1, 3), (2, 4)])
def test_nothing_is_read_on_behind_what_was_read_for_another_key(seats, parallel, kept_prompts):
    places, never = seats(parallel, kept_prompts=kept_prompts), threading.Event()
    text = places.pairs[0].tokenizer(EXAMPLES[0].prompt).input_ids

    def kept(owner):
        with places.take(text, never, owner) as pair:
            found = []
            for model in (pair.target, pair.drafter.model_cache):
                model.recall(text)
                found.append(model.read_on(text))
                model.append(text[found[-1] :], 1)
                model.recall([9, 8, 7])  # what is kept is then beside the cache
            return found

    whole = [len(text) - 1] * 2
    for owner in (1, 2, None, 1):
        assert [kept(owner), kept(owner)] == [[0, 0], whole], owner
