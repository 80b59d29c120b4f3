"""What ends a response early, wherever it strikes, leaves nothing behind that the next response could read."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch
from support.drafters import StruckError, striking
from support.interruptions import lines_of, strikes_of
from support.tiny_models import tiny_llama
from support.tiny_pair import tiny_pair
from transformers.generation import candidate_generator

import cactus_decoding
from cactus_decoding import CandidateGeneratorDrafter, Pair, generate, stream
from cactus_decoding.engines.transformers.cached_model import CachedModel

FIRST, NEXT = "Tom has 4 pens. He buys 2", "Tom has 4 pens. Ann has 9"
"""Prompts that share a beginning: what is remembered of the first is looked at in the second."""
SETTINGS = {"max_new_tokens": 8, "num_speculative_tokens": 3, "seed": 5, "temperature": 0.7}
LOADED = tiny_pair()


def pair_of(kind: str = "model") -> Pair:
    """Return a pair with caches of its own, whose drafter has a model or exits the target's early."""
    pair = LOADED.twin()
    drafter = pair.drafter if kind == "model" else CandidateGeneratorDrafter(assistant_model=pair.target.model)
    return Pair(pair.target, drafter, pair.tokenizer)


@pytest.mark.slow
def test_an_interruption_at_any_line_of_a_candidate_generator_leaves_nothing_behind():
    """Of models and their caches, see the tests of what is kept of prompts."""
    folder = Path(cactus_decoding.__file__).parent
    files = (f"{folder}/engines/transformers/candidates.py", f"{folder}/core/pair.py", candidate_generator.__file__)
    short = SETTINGS | {"max_new_tokens": 4}
    expected, pair = generate(pair_of("exiting target"), NEXT, **short).token_ids, pair_of("exiting target")
    generate(pair, FIRST, **short)
    strikes = strikes_of(lambda: generate(pair, FIRST, **short), files)
    assert len(strikes) > 50
    for strike in strikes:
        generate(pair, FIRST, **short)  # so that there is something to remember
        with pytest.raises(KeyboardInterrupt):
            lines_of(lambda: generate(pair, FIRST, **short), files, strike)
        assert generate(pair, NEXT, **short).token_ids == expected, f"at line {strike}"


def test_logits_that_are_no_numbers_leave_nothing_behind():
    broken = tiny_pair()
    with torch.no_grad():
        head = broken.drafter.model.lm_head.weight
        before = head.clone()
        head.fill_(torch.nan)
    with pytest.raises(ValueError, match="the draft's logits after"):
        generate(broken, FIRST, **SETTINGS)
    with torch.no_grad():
        head.copy_(before)
    assert generate(broken, NEXT, **SETTINGS).token_ids == generate(pair_of(), NEXT, **SETTINGS).token_ids


def test_a_cache_that_was_being_written_to_is_empty_afterwards():
    model = CachedModel(tiny_llama(0))
    model.append([1, 2, 3], rows=1)
    with striking(1, after=True), pytest.raises(StruckError):
        model.append([4, 5], rows=1)
    assert model.length == 0
    assert torch.equal(model.append([6, 7], rows=1), CachedModel(tiny_llama(0)).append([6, 7], rows=1))


# --- one response at a time ---

BUSY = r"a pair serves one response at a time.*close\(\).*pair\.twin\(\)"


@pytest.mark.parametrize("kind", ["model", "exiting target"])
def test_interleaved_responses_are_refused_and_the_first_is_not_disturbed(kind):
    expected = generate(pair_of(kind), FIRST, **SETTINGS).token_ids
    pair = pair_of(kind)
    first, second = stream(pair, FIRST, **SETTINGS), stream(pair, NEXT, **SETTINGS)
    for _ in first:
        with pytest.raises(RuntimeError, match=BUSY):
            generate(pair, NEXT, **SETTINGS)
        if first.finish_reason is None:
            with pytest.raises(RuntimeError, match=BUSY):
                next(stream(pair, NEXT, **SETTINGS))
    assert first.token_ids == expected
    # what was not begun when the pair was taken can begin now
    assert [token for step in second for token in step.token_ids] == second.token_ids
    assert second.token_ids == generate(pair_of(kind), NEXT, **SETTINGS).token_ids


def finished(pair: Pair) -> object:
    response = stream(pair, FIRST, **SETTINGS)
    list(response)
    return response


def closed(pair: Pair) -> object:
    response = stream(pair, FIRST, **SETTINGS)
    next(response)
    response.close()
    return response


def never_begun(pair: Pair) -> object:
    return stream(pair, FIRST, **SETTINGS)


def dropped(pair: Pair) -> None:
    next(stream(pair, FIRST, **SETTINGS))
    gc.collect()


def left_early(pair: Pair) -> None:
    for _ in stream(pair, FIRST, **SETTINGS):
        break


def failed(pair: Pair) -> object:
    response = stream(pair, FIRST, **SETTINGS)
    next(response)

    def fails(*given, **named):
        raise StruckError

    pair.target.append, append = fails, pair.target.append
    with pytest.raises(StruckError):
        next(response)
    pair.target.append = append
    return response


@pytest.mark.parametrize("end", [finished, closed, never_begun, dropped, left_early, failed])
def test_a_response_that_is_over_leaves_the_pair_to_others(end):
    pair = pair_of()
    held = end(pair)
    assert generate(pair, NEXT, **SETTINGS).token_ids == generate(pair_of(), NEXT, **SETTINGS).token_ids
    del held


def test_twins_take_turns():
    pair = pair_of()
    responses = [stream(each, prompt, **SETTINGS) for each, prompt in ((pair, FIRST), (pair.twin(), NEXT))]
    while any([next(response, None) for response in responses]):
        pass
    for response, prompt in zip(responses, (FIRST, NEXT), strict=True):
        assert response.token_ids == generate(pair_of(), prompt, **SETTINGS).token_ids


def test_of_many_threads_one_at_a_time_is_served():
    pair, expected = pair_of(), generate(pair_of(), FIRST, **SETTINGS).token_ids
    outcomes: list[object] = []
    start = threading.Barrier(4)

    def one() -> None:
        start.wait()
        try:
            outcomes.append(generate(pair, FIRST, **SETTINGS).token_ids)
        except RuntimeError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    served = [each for each in outcomes if isinstance(each, list)]
    assert served
    assert all(each == expected for each in served)
    assert len(outcomes) == 4
