"""Threads are taken where they save time, and no more of them."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from support.tiny_models import tiny_llama
from support.tuning import pretend, threads_of

from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.tuning.answers import chosen_threads, thread_counts, use_fastest_threads


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (8, [1, 2, 3, 4, 6, 8]), (20, [1, 2, 3, 4, 6, 8, 12, 16, 20])],
)
def test_numbers_of_threads_reach_all_cores(monkeypatch: pytest.MonkeyPatch, cores: int, expected: list[int]) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores), raising=False)
    assert thread_counts() == expected
    assert all(one < other for one, other in pairwise(thread_counts()))


def test_threads_that_bring_nothing_are_left_to_others() -> None:
    assert chosen_threads({1: 1.0}) == 1
    assert chosen_threads({1: 1.0, 2: 0.99, 4: 1.5}) == 1
    assert chosen_threads({1: 1.0, 2: 0.6, 4: 0.5}) == 4


@pytest.mark.usefixtures("settings_of_the_libraries")
def test_the_model_is_left_with_the_best_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model = CachedModel(tiny_llama(0))
    pretend(monkeypatch, lambda width, threads: width / threads if threads < 3 else 9.0, draft=0.1)
    assert use_fastest_threads(model, [1, 2, 3], (1, 4), math.inf) == threads_of(model) == 2
    assert use_fastest_threads(model, [1], (1, 4), math.inf) == threads_of(model) == 1


def test_a_file_has_threads_of_its_own(gguf) -> None:
    from cactus_decoding import load_pair

    target, draft = gguf("target", "q8_0"), gguf("worded", "q8_0")
    pair = load_pair(f"{target}:context_size=128", f"{draft}:context_size=128,threads=1")
    pair.target.use_threads(2)
    assert (threads_of(pair.target), threads_of(pair.drafter.model_cache)) == (2, 1)
    assert pair.target.twin().threads == 2
    assert pair.target.append([1, 2, 3], rows=1).isfinite().all()
