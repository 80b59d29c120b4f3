"""What a pair keeps of a text serves the next response, and changes nothing of it but rounding."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest
import torch
from support.architectures import tiny_architecture
from support.interruptions import lines_of, strikes_of
from support.reads import reads
from support.tiny_pair import tiny_pair
from support.versions import since

import cactus_decoding
from cactus_decoding import ModelDrafter, Pair, generate, load_pair, stream
from cactus_decoding.core.models.base import BaseCachedModel, num_bytes, num_shared
from cactus_decoding.engines.llama_cpp import CactusLlama
from cactus_decoding.engines.transformers.cached_model import CachedModel

FIRST, NEXT = "Tom has 4 pens. He buys 2", "Tom has 4 pens. Ann has 9"
SETTINGS = {"max_new_tokens": 8, "num_speculative_tokens": 3, "seed": 5, "temperature": 0.7}
LOADED = tiny_pair()


def pair_of(kept_prompts: int = 1) -> Pair:
    pair = LOADED.twin()
    return Pair(pair.target, pair.drafter, pair.tokenizer, kept_prompts=kept_prompts)


def caches(pair: Pair) -> list[BaseCachedModel]:
    return [pair.target, pair.drafter.model_cache]


def assert_hold_what_they_say(pair: Pair) -> None:
    """Behind what a cache says that it holds, rows are those of a model that has read just that."""
    for cache in caches(pair):
        held = [*takewhile(lambda token: token >= 0, cache._token_ids)]  # no tree that nobody has taken a path of
        cache.rollback(len(held))
        fresh = cache.twin()  # whose rows may be memory of its own
        expected = fresh.append([*held, 1, 2], rows=2)
        torch.testing.assert_close(cache.append([1, 2], rows=2), expected, rtol=0, atol=1e-4)


def test_a_response_reads_on_behind_what_its_prompt_shares_with_the_last_text():
    pair = pair_of()
    answer = generate(pair, FIRST, **SETTINGS)
    conversation = FIRST + answer.text + ". Why?"
    for prompt, kept in ((FIRST, FIRST), (NEXT, "Tom has 4 pens."), (conversation, FIRST)):
        generate(pair, FIRST, **SETTINGS)
        shared = num_shared(pair.tokenizer(prompt).input_ids, pair.tokenizer(kept).input_ids)
        with reads() as found:
            response = generate(pair, prompt, **SETTINGS)
        assert max(count for _, count in found) < len(response.prompt_token_ids)
        assert min(start for start, _ in found) >= shared - 1
        assert response.token_ids == generate(pair_of(), prompt, **SETTINGS).token_ids
        assert_hold_what_they_say(pair)


@pytest.mark.parametrize("tree", [None, "static=3.2.1"])
def test_what_a_seed_gives_does_not_depend_on_what_was_served_before(tree):
    settings = SETTINGS if tree is None else {k: v for k, v in SETTINGS.items() if "num" not in k} | {"tree": tree}
    pair, alone = pair_of(), {p: generate(pair_of(), p, **settings).token_ids for p in (FIRST, NEXT, "Ann")}
    for prompt in (FIRST, NEXT, FIRST, "Ann", NEXT, NEXT):
        assert generate(pair, prompt, **settings).token_ids == alone[prompt]
        assert_hold_what_they_say(pair)


@pytest.mark.parametrize("how", ["forget", "kept_prompts=0"])
def test_rows_are_the_same_to_the_last_bit_where_nothing_is_kept(how):
    def rows(pair):
        return torch.cat([outcome.rows.logits for outcome in stream(pair, NEXT, **SETTINGS)])

    pair = pair_of(0 if how == "kept_prompts=0" else 1)
    generate(pair, FIRST, **SETTINGS)
    if how == "forget":
        pair.forget()
        assert [cache.length for cache in caches(pair)] == [0, 0]
    assert torch.equal(rows(pair), rows(pair_of()))


def test_a_pair_forgets_nothing_while_a_response_runs():
    pair = pair_of()
    response = stream(pair, FIRST, **SETTINGS)
    next(response)
    with pytest.raises(RuntimeError, match="one response at a time"):
        pair.forget()
    list(response)
    assert response.token_ids == generate(pair_of(), FIRST, **SETTINGS).token_ids


def gguf_pair(gguf, kept_prompts: int) -> Pair:
    files = (f"{gguf(name)}:context_size=256,cache=float32" for name in ("draft", "worded"))
    return load_pair(*files, kept_prompts=kept_prompts)


def hybrid_pair(gguf, kept_prompts: int) -> Pair:
    """A model with a recurrent state beside keys and values, which drafts for itself."""
    pair, model = pair_of(), tiny_architecture("falcon_h1", vocab_size=len(LOADED.tokenizer))
    return Pair(CachedModel(model), ModelDrafter(CachedModel(model)), pair.tokenizer, kept_prompts=kept_prompts)


CONVERSATIONS = ("Tom has 4 pens. He buys 2", "Ann owns 9 boats and sells", "How many nuts does Finn eat")


@pytest.mark.parametrize("make", [lambda gguf, kept: pair_of(kept), gguf_pair], ids=["transformers", "gguf"])
def test_several_conversations_are_kept_and_the_one_used_last_longest(make, gguf):
    def asked(pair: Pair, prompt: str) -> tuple[list[int], int]:
        with reads() as found:
            response = generate(pair, prompt, **SETTINGS)
        assert_hold_what_they_say(pair)
        return response.token_ids, min(start for start, _ in found)

    one, two, three = CONVERSATIONS
    pair, alone = make(gguf, 2), {each: generate(make(gguf, 1), each, **SETTINGS).token_ids for each in CONVERSATIONS}
    for prompt, kept in zip((one, two, one, two, three, two, one), (0, 0, 1, 1, 0, 1, 0), strict=True):
        token_ids, start = asked(pair, prompt)
        assert token_ids == alone[prompt]
        assert start == (len(pair.tokenizer(prompt).input_ids) - 1 if kept else start), prompt
        assert kept or start < 4, prompt
    assert [len(cache.saved) for cache in caches(pair)] == [1, 1]
    pair.forget()
    assert [(cache.length, cache.saved) for cache in caches(pair)] == [(0, [])] * 2


@pytest.mark.parametrize(
    "make", [lambda gguf, kept: pair_of(kept), pytest.param(hybrid_pair, marks=since("5.19.0")), gguf_pair]
)
def test_copies_take_no_more_memory_than_they_have_room_for(make, gguf):
    """Those of target and draft together; what was used longest ago goes first."""

    def kept(pair: Pair) -> list[list[int]]:
        beginnings = [pair.tokenizer(each).input_ids for each in CONVERSATIONS]
        return [
            [i for copy in cache.saved for i, each in enumerate(beginnings) if copy.token_ids[: len(each)] == each]
            for cache in caches(pair)
        ]

    def asked(room: int | str) -> Pair:
        pair = make(gguf, room)
        for each in (*CONVERSATIONS, CONVERSATIONS[0]):
            generate(pair, each, **SETTINGS)
        return pair

    whole = asked("1GiB")
    assert kept(whole) == [[1, 2]] * 2
    sizes = [num_bytes(copy.state) for cache in caches(whole) for copy in cache.saved]
    assert min(sizes) > 0
    assert kept(asked(f"{sum(sizes)}B")) == [[1, 2]] * 2
    assert kept(asked(f"{sum(sizes) - 1}B")) == [[2], [1, 2]]
    assert kept(asked("0B")) == [[], []]
    assert kept(asked("3")) == [[1, 2]] * 2


@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, ValueError), (True, TypeError), (0.5, TypeError), ("2 GB", ValueError), ("1.5", ValueError)],
)
def test_kept_prompts_is_a_number_of_prompts(value, error):
    with pytest.raises(error, match="kept_prompts must be"):
        pair_of(value)
    with pytest.raises(error, match="kept_prompts must be"):  # before anything is loaded
        load_pair("nothing.gguf", kept_prompts=value)
    with pytest.raises(error, match="kept_prompts must be"):
        CactusLlama("nothing.gguf", kept_prompts=value)


def double(embedding: torch.nn.Embedding) -> None:
    with torch.no_grad():
        embedding.weight.mul_(2)


def replace(embedding: torch.nn.Embedding) -> None:
    embedding.weight.data = 2 * embedding.weight


def hook(embedding: torch.nn.Embedding) -> None:
    embedding.register_forward_hook(lambda module, given, output: 2 * output)


@pytest.mark.parametrize("change", [double, replace, hook])
@pytest.mark.parametrize("role", ["target", "draft"])
def test_nothing_is_kept_of_a_model_that_has_changed(change, role):
    def changed(pair):
        model = pair.target.model if role == "target" else pair.drafter.model
        change(model.model.embed_tokens)
        return pair

    def loaded():
        pair = tiny_pair()
        return Pair(pair.target, pair.drafter, pair.tokenizer)

    pair = loaded()
    generate(pair, FIRST, **SETTINGS)
    expected = generate(changed(loaded()), FIRST, **SETTINGS).token_ids
    assert generate(changed(pair), FIRST, **SETTINGS).token_ids == expected
    assert_hold_what_they_say(pair)


@pytest.mark.parametrize(
    ("tree", "make", "every"),
    [
        (None, lambda gguf, kept: pair_of(kept), 16),
        pytest.param(None, lambda gguf, kept: pair_of(kept), 1, marks=pytest.mark.slow),
        pytest.param("static=2.2", lambda gguf, kept: pair_of(kept), 1, marks=pytest.mark.slow),
        pytest.param(None, gguf_pair, 1, marks=pytest.mark.slow),
        pytest.param(None, hybrid_pair, 7, marks=[pytest.mark.slow, since("5.19.0")]),
    ],
    ids=["some lines", "every line", "tree", "gguf", "hybrid"],
)
def test_an_interruption_at_any_line_leaves_caches_that_hold_what_they_say(tree, make, every, gguf):
    """One conversation is in the caches, and another one, which is then asked for, was saved."""
    folder = Path(cactus_decoding.__file__).parent
    names = (
        *(f"core/models/{name}.py" for name in ("base", "recurrent")),
        *(f"engines/transformers/{name}.py" for name in ("cached_model", "forward", "row_cache")),
        *(f"engines/llama_cpp/models/{name}.py" for name in ("context", "model")),
        *("core/drafting/model.py", "core/loop.py", "core/pair.py"),
    )
    files = tuple(f"{folder}/{name}" for name in names)
    settings = SETTINGS | {"max_new_tokens": 2}
    if tree is not None:
        settings = {k: v for k, v in settings.items() if "num" not in k} | {"tree": tree}
    one, two, _ = CONVERSATIONS
    pair, expected = make(gguf, 2), generate(make(gguf, 1), two, **settings).token_ids
    for prompt in (two, one):
        generate(pair, prompt, **settings)
    assert all(Path(file).exists() for file in files)
    strikes = strikes_of(lambda: generate(pair, two, **settings), files)
    assert len(strikes) > 50
    for strike in strikes[::every]:
        for prompt in (two, one):
            generate(pair, prompt, **settings)
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda: generate(pair, two, **settings), files, strike)
        assert generate(pair, two, **settings).token_ids == expected, f"at line {strike}"
        assert_hold_what_they_say(pair)
        assert all(len(cache.saved) <= 1 for cache in caches(pair))


def test_sequences_share_a_beginning():
    texts = [[], [1], [2], [1, 2], [1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 4, 4, 5], [2, 2, 3, 4, 5]]
    for some in texts:
        for others in texts:
            expected = next((i for i, pair in enumerate(zip(some, others, strict=False)) if pair[0] != pair[1]), None)
            assert num_shared(some, others) == (min(len(some), len(others)) if expected is None else expected)
