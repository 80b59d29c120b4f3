"""Coupled requests in a step: what a seed's noise says is what can be kept, recovered or drawn."""

import math
from types import SimpleNamespace

import pytest
import torch

from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.engines.vllm.coupling import CoupledBatch, CoupledRequest, only

VOCABULARY, PROMPT = 8, 11
ROWS = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(3))


def request(seed: int, made: int) -> CoupledRequest:
    return CoupledRequest(SharedNoise(seed), PROMPT, [0] * made, 0, 1.0)


def noise_of(seed: int, row: torch.Tensor, place: int) -> int:
    return SharedNoise(seed).token(row.double().softmax(-1), PROMPT + place)


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> CoupledBatch:
    monkeypatch.setattr(CoupledRequest, "truncated", lambda request, row: row.clone())  # vLLM's own; nothing is cut off
    made = CoupledBatch()
    made.requests = {0: request(5, made=4), 2: request(9, made=0)}
    return made


def test_where_nothing_is_proposed_only_the_noise_s_token_is_left(batch: CoupledBatch) -> None:
    logits = ROWS[:3].clone()
    batch.draw(logits)
    for index, seed, place in ((0, 5, 4), (2, 9, 0)):
        assert logits[index].isfinite().nonzero().tolist() == [[noise_of(seed, ROWS[index], place)]]
    assert torch.equal(logits[1], ROWS[1]), "not coupled"


@pytest.mark.parametrize("wrong_at", [0, 1, None])
def test_proposals_are_kept_as_far_as_they_are_the_noise_s_tokens(batch: CoupledBatch, wrong_at: int | None) -> None:
    after, logits = ROWS[:3].clone(), ROWS.clone()[:3]
    batch.draw(after)
    counts, bonus = [2, 1, 0], torch.tensor([[1], [2], [3]], dtype=torch.int32)
    tokens = [noise_of(5, logits[place], 4 + place) for place in range(2)]
    drafted = [token if place != wrong_at else (token + 1) % VOCABULARY for place, token in enumerate(tokens)]
    before = logits.clone()
    with batch.verification(logits, torch.tensor([*drafted, 6]), counts, bonus) as drawn:
        visited = 2 if wrong_at is None else wrong_at + 1
        for place in range(visited):
            assert logits[place].argmax() == tokens[place]
            assert logits[place].isfinite().sum() == 1
        assert torch.equal(logits[visited:], before[visited:]), "rows that nothing depends on, and others' rows"
        expected = noise_of(5, ROWS[0], 4 + 2) if wrong_at is None else 1
        assert drawn.tolist() == [[expected], [2], [noise_of(9, ROWS[2], 0)]]
        assert drawn.dtype == bonus.dtype
    assert torch.equal(logits, before)
    assert bonus.tolist() == [[1], [2], [3]]


def test_a_row_that_is_no_distribution_is_left() -> None:
    row = torch.full((VOCABULARY,), math.nan)
    only(row, VOCABULARY)
    assert row.isnan().all()


def test_a_request_s_truncation_is_read_as_vllm_writes_none() -> None:
    params = SimpleNamespace(seed=3, top_k=-1, top_p=1.0)
    made = CoupledRequest.of(params, [5, 6], [7])
    assert (made.top_k, made.prompt_length, made.output_ids) == (0, 2, [7])
    assert CoupledRequest.of(SimpleNamespace(seed=3, top_k=4, top_p=0.5), None, []).top_k == 4
