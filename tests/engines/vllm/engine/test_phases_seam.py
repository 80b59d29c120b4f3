"""Phases on vLLM's own batch of the V1 runner: through moves and pauses, and where it schedules ahead of the tokens."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from stock_sampler import CPU, params, prepare, processors
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from cactus_decoding.engines.vllm.v1 import BatchRules, batch_rules

prepare()

pytestmark = pytest.mark.smoke
WORDS = ("<a>", "</a>", " 3", "x", "y", "z")
MARKED = {"relax_within": ["<a>", "</a>"]}


def request(name: str, prompt: list[int], output: list[int] | None = None, **policy: object) -> CachedRequestState:
    return CachedRequestState(
        req_id=name,
        prompt_token_ids=prompt,
        mm_features=[],
        sampling_params=params("cactus:delta=1", **policy),
        generator=None,
        block_ids=([0],),
        num_computed_tokens=0,
        output_token_ids=[] if output is None else output,
    )


@pytest.fixture
def batch() -> InputBatch:
    return InputBatch(4, 64, 64, CPU, len(WORDS), [16], [4], logitsprocs=processors(words=WORDS, max_num_seqs=4))


def rules_of(batch: InputBatch) -> BatchRules:
    rules = batch_rules(batch)
    assert rules is not None
    return rules


def relaxable(batch: InputBatch, *drafted: list[int]) -> list[bool] | None:
    """Return which positions of a step may be relaxed, in the order of the batch; None for all."""
    counts, flat = [len(own) for own in drafted], [token for own in drafted for token in own]
    layout = rules_of(batch).layout(counts, max(counts), torch.tensor(flat))
    assert layout is not None
    return None if layout.relaxable is None else layout.relaxable.tolist()


def test_phases_follow_their_requests_as_tokens_come_and_the_batch_moves(batch: InputBatch) -> None:
    late, marked, plain = (
        request("late", [3], lossless_tokens=3),
        request("marked", [0], **MARKED),
        request("plain", [3]),
    )
    for one in (late, marked, plain):
        batch.add_request(one)
    batch.refresh_metadata()
    assert relaxable(batch, [3, 3], [3, 1, 3], [3]) == [False, False, True, True, False, True]
    late.output_token_ids += [3, 3]  # as the runner does after a step
    marked.output_token_ids += [1]
    assert relaxable(batch, [3, 3], [3, 0, 3], [3]) == [False, True, False, False, True, True]
    batch.remove_request("late")
    batch.condense()
    batch.refresh_metadata()
    assert batch.req_ids == ["plain", "marked"]
    assert relaxable(batch, [3], [0, 3]) == [True, False, True]
    late.output_token_ids += [3]
    batch.add_request(late)  # it is back, with what it had
    batch.refresh_metadata()
    assert relaxable(batch, [3], [0, 3], [3, 3]) == [True, False, True, True, True]
    batch.remove_request("marked")
    batch.condense()
    batch.refresh_metadata()
    assert relaxable(batch, [3], [3, 3]) is None  # nothing is left to ask for


def test_a_place_that_another_request_takes_begins_anew(batch: InputBatch) -> None:
    batch.add_request(request("one", [0], [3, 3], **MARKED))
    batch.refresh_metadata()
    assert relaxable(batch, [3]) == [True]
    batch.remove_request("one")
    batch.add_request(request("other", [3], **MARKED))
    batch.refresh_metadata()
    assert relaxable(batch, [3]) == [False]


def test_where_vllm_schedules_ahead_the_tokens_are_there_before_they_are_read(batch: InputBatch) -> None:
    one, other = request("one", [3], **MARKED), request("other", [3])
    for each in (one, other):
        batch.add_request(each)
    batch.refresh_metadata()
    assert batch.sampling_metadata.output_token_ids  # vLLM looks at it to know whether somebody needs them
    one.output_token_ids += [-1, -1, -1]  # placeholders, of which there may be too many
    assert relaxable(batch, [3, 3], [3]) == [False, False, True]  # unknown, and so lossless
    batch.prev_req_id_to_index = {"one": 0, "other": 1}
    sampled, ready = torch.tensor([[3, 0, -1], [3, -1, -1]]), SimpleNamespace(synchronize=lambda: None)
    batch.set_async_sampled_token_ids(sampled, ready)
    batch.update_async_output_token_ids()
    assert one.output_token_ids == [3, 0]
    assert relaxable(batch, [3, 3], [3]) == [True, True, True]
    batch.remove_request("one")
    batch.condense()
    batch.refresh_metadata()
    assert not batch.sampling_metadata.output_token_ids  # nobody waits for tokens any more
