"""What a draft that rested has missed, and when it may rest."""

from types import SimpleNamespace

import pytest
import torch
from support.tables import all_of

from cactus_decoding.engines.vllm.drafting import MissedTokens, Span, may_rest, portions, with_rests

BLOCK = 4
TABLE = torch.tensor([[3, 1], [0, 2]])  # blocks of two requests


def missed(*slots: int) -> MissedTokens:
    made = MissedTokens(4 * BLOCK, BLOCK, torch.device("cpu"))
    made.add(torch.tensor(slots, dtype=torch.int64))
    return made


def test_slots_are_those_of_a_request_s_blocks() -> None:
    assert missed().slots(TABLE[0], 2, 6).tolist() == [14, 15, 4, 5]
    assert missed().slots(TABLE[1], 0, 0).tolist() == []


def test_a_span_begins_at_the_first_token_that_was_missed_and_ends_with_the_text() -> None:
    assert missed(14, 15, 4).spans(TABLE, torch.tensor([6, 6])) == [Span(0, 2, 6)]
    assert missed(4, 8).spans(TABLE, torch.tensor([5, 5])) == [Span(0, 4, 5), Span(1, 4, 5)]
    assert missed(4, 8).spans(TABLE, torch.tensor([4, 5])) == [Span(1, 4, 5)], "what is behind the text is nobody's"
    for lengths in ([0, 8], [0, 0]):
        assert missed(4).spans(TABLE, torch.tensor(lengths)) == []
    some = missed(12, 13)
    some.remove(torch.tensor([12]))
    assert some.spans(TABLE, torch.tensor([8, 8])) == [Span(0, 1, 8)]


@all_of("most, sizes", [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (100, [7])])
def test_portions_hold_every_token_once_and_in_order(most: int, sizes: list[int]) -> None:
    spans = [Span(0, 2, 5), Span(1, 4, 4), Span(3, 0, 4)]
    parts = list(portions(spans, most))
    assert [sum(span.end - span.begin for span in part) for part in parts] == sizes
    flat = [(span.row, place) for part in parts for span in part for place in range(span.begin, span.end)]
    assert flat == [(span.row, place) for span in spans for place in range(span.begin, span.end)]


def runner(**changes: object) -> SimpleNamespace:
    parallel = SimpleNamespace(data_parallel_size=1, pipeline_parallel_size=1)
    given = {"uses_draft_model": lambda: True, "disable_padded_drafter_batch": False} | changes
    return SimpleNamespace(
        speculative_config=SimpleNamespace(**given),
        use_async_scheduling=given.get("use_async_scheduling", False),
        parallel_config=given.get("parallel_config", parallel),
        drafter=SimpleNamespace(supports_mm_inputs=given.get("supports_mm_inputs", False), block_size=BLOCK),
        kv_cache_config=SimpleNamespace(num_blocks=4),
        device=torch.device("cpu"),
    )


class Runner(SimpleNamespace):
    __hash__ = object.__hash__


@all_of(
    "changes",
    [
        {"uses_draft_model": lambda: False},
        {"use_async_scheduling": True},
        {"disable_padded_drafter_batch": True},
        {"supports_mm_inputs": True},
        {"parallel_config": SimpleNamespace(data_parallel_size=2, pipeline_parallel_size=1)},
        {"parallel_config": SimpleNamespace(data_parallel_size=1, pipeline_parallel_size=2)},
    ],
)
def test_other_drafts_never_rest(changes: dict) -> None:
    assert may_rest(runner())
    assert not may_rest(runner(**changes))


@pytest.mark.parametrize("wanted", [0, 2])
def test_the_draft_rests_where_no_proposal_is_wanted(wanted: int) -> None:
    calls: list[object] = []
    made = Runner(**vars(runner()))
    step = SimpleNamespace(slot_mapping=torch.tensor([5, 6, -1]), num_actual_tokens=2, num_reqs=2)
    output = SimpleNamespace(num_spec_tokens_to_schedule=wanted)
    result = with_rests(lambda *args, **kwargs: calls.append(args[1]))(made, output, *[None] * 6, step, None)
    assert calls == ([] if wanted == 0 else [output])
    if wanted == 0:
        assert result.shape == (2, 0)
        assert made._draft_probs is None
