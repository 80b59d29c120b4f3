"""Texts that share a context: rows are those of each alone, passes are common, and nobody is left waiting."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from support.gguf_files import tiny_gguf
from support.patience import PATIENCE
from support.tiny_models import tiny_llama

from cactus_decoding.core.models.base import Cancelled
from cactus_decoding.engines.llama_cpp.models.context import Context
from cactus_decoding.engines.llama_cpp.models.model import side_by_side

COUNT = 3


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return tiny_gguf(tiny_llama(0), tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def together(alone):
    passes, models = side_by_side([alone], COUNT)
    return passes, [model for (model,) in models]


@pytest.fixture
def widths(monkeypatch):
    found, read = [], Context.read

    def noted(self, portions):
        found.append((len(portions), sum(len(each.token_ids) for each in portions)))
        return read(self, portions)

    monkeypatch.setattr(Context, "read", noted)
    return found


def check_as_alone(alone, row, text):
    """Check the last row of a text that was read with others."""
    alone.reset()
    torch.testing.assert_close(row, alone.append(text, 1), rtol=1e-4, atol=1e-5)


def texts(vocabulary, lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


def at_once(passes, count, run):
    begin = threading.Barrier(count)

    def take_part(number):
        with passes.response():
            begin.wait()
            return run(number)

    with ThreadPoolExecutor(count) as pool:
        return [each.result(PATIENCE) for each in [pool.submit(take_part, number) for number in range(count)]]


def test_rows_are_those_of_each_text_alone_and_passes_are_common(alone, together, widths):
    passes, models = together
    given = texts(alone.vocabulary_size, (3, 9, 5))

    def read(model, text):
        rows = [model.append(text, 2)]
        rows.append(model.append(text[:4], 4))
        model.rollback(len(text) + 1)
        rows.append(model.append(text[:2], 1))
        return torch.cat(rows)

    found = at_once(passes, COUNT, lambda number: read(models[number], given[number]))
    assert widths == [(3, 17), (3, 11), (3, 6)]
    for rows, text in zip(found, given, strict=True):
        alone.reset()
        torch.testing.assert_close(rows, read(alone, text), rtol=1e-4, atol=1e-5)


def test_a_long_prompt_is_read_in_parts_between_the_others_steps(alone, together, widths, monkeypatch):
    monkeypatch.setattr("cactus_decoding.engines.llama_cpp.models.passes._PASS", 8)
    passes, models = together
    long, *short = texts(alone.vocabulary_size, (20, 2, 2))
    steps = 4

    def run(number):
        if number == 0:
            return models[0].append(long, 20)
        return torch.cat([models[number].append(short[number - 1], 2) for _ in range(steps)])

    rows = at_once(passes, COUNT, run)
    assert widths[:steps] == [(3, 8)] * steps
    assert sum(tokens for _, tokens in widths) == 20 + 2 * 2 * steps
    alone.reset()
    torch.testing.assert_close(rows[0], alone.append(long, 20), rtol=1e-4, atol=1e-5)


def test_one_that_is_cancelled_leaves_the_others(alone, together):
    passes, models = together
    given, event = texts(alone.vocabulary_size, (4, 4, 4)), threading.Event()
    models[0].cancel_by(event)

    def run(number):
        models[number].append(given[number], 1)
        if number == 0:
            event.set()
            with pytest.raises(Cancelled):
                models[0].append(given[0], 1)
            return models[0].length
        return models[number].append(given[number], 1)

    length, *rows = at_once(passes, COUNT, run)
    assert length == 0
    for row, text in zip(rows, given[1:], strict=True):
        check_as_alone(alone, row, text + text)


def test_one_that_is_cancelled_while_it_is_read_leaves_the_others(alone, together, monkeypatch):
    passes, models = together
    given, event, left = texts(alone.vocabulary_size, (4, 4, 4)), threading.Event(), threading.Event()
    models[0].cancel_by(event)
    read = Context.read

    def slowly(self, portions):
        if len(portions) == COUNT:
            event.set()
            with passes.changed:
                passes.changed.notify_all()
            assert left.wait(PATIENCE)
        return read(self, portions)

    monkeypatch.setattr(Context, "read", slowly)

    def run(number):
        # not by `append`, which does something alone first: that wakes who waits, who might then make the pass itself
        read_on = partial(models[number]._text.read, np.array(given[number], dtype=np.int32), 0, 1)
        if number == 0:
            with pytest.raises(Cancelled):
                read_on()
            left.set()
            return None
        while not passes.changed._waiters and not left.is_set():  # so that the first one waits before the others
            pass
        return read_on()

    for row, text in zip(at_once(passes, COUNT, run)[1:], given[1:], strict=True):
        check_as_alone(alone, row, text)


def test_a_pass_that_fails_is_told_to_all_of_it_and_all_can_read_again(alone, together):
    passes, models = together
    given = texts(alone.vocabulary_size, (4, 4, 4))

    def run(number):
        bad = [*given[number][:-1], 10**6] if number == 1 else given[number]  # no token
        with pytest.raises(RuntimeError, match="could not read 12 tokens"):
            models[number].append(bad, 1)
        return models[number].append(given[number], 1)

    for row, text in zip(at_once(passes, COUNT, run), given, strict=True):
        check_as_alone(alone, row, text)


def test_texts_are_saved_and_restored_one_by_one(alone, together):
    _, models = together
    given = texts(alone.vocabulary_size, (6, 7))
    for model, text in zip(models, given, strict=False):
        model.append(text, 1)
    saved = models[1]._text.save()
    models[1].reset()
    models[1].append(given[0], 1)
    models[1]._text.forget_from(0)
    models[1]._text.restore(saved)
    models[1]._token_ids = list(given[1])
    for model, text in zip(models, given, strict=False):
        check_as_alone(alone, model.append([1], 1), [*text, 1])
