"""The study of limits on the experts of a pass: the limit is what it says, and the table is that of the result file."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoTokenizer

from cactus_decoding import zoo
from studies.expert_budget import run


@pytest.fixture(scope="module")
def model():
    return run.mixture(AutoTokenizer.from_pretrained(zoo.path("target")), 0)


def by_hand(block, hidden, budget, way, shared=True):
    """What a layer's experts add, token by token and expert by expert; not ``shared``: each token has its own limit."""
    rows = []
    probs = (hidden @ block.gate.weight.T).softmax(-1)
    for i, token in enumerate(hidden):
        ranking = probs.sum(0) if shared else probs[i]
        there = set(ranking.argsort(descending=True)[:budget].tolist())
        order = [
            expert for expert in probs[i].argsort(descending=True).tolist() if expert in there or way == "truncate"
        ]
        chosen = order[: run.PER_TOKEN]
        total, row = sum(probs[i][chosen]), torch.zeros_like(token)
        for expert in set(chosen) & there:
            gate, up = (block.experts.gate_up_proj[expert] @ token).chunk(2)
            part = block.experts.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
            row += probs[i][expert] / total * part
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("way", run.WAYS)
@torch.no_grad()
def test_tokens_take_what_the_pass_may_load(model, way):
    block, hidden = model.model.layers[0].mlp, torch.randn(9, run.WIDTH, generator=torch.Generator().manual_seed(1))
    for budget in (2, 5, run.EXPERTS):
        with run.experts_limited(model, budget, way) as used:
            found = block(hidden[None])[0]
        assert used[0] <= budget
        assert torch.allclose(found, by_hand(block, hidden, budget, way), atol=1e-5)
    with run.experts_limited(model, 2, way):
        found = block(hidden[None])[0]
    assert not torch.allclose(found, by_hand(block, hidden, 2, way, shared=False), atol=1e-3), "a limit for each token"


@torch.no_grad()
def test_a_limit_that_all_keep_to_changes_nothing(model):
    ids = torch.arange(3, 12)[None]
    plain = model(ids).logits
    for way in run.WAYS:
        with run.experts_limited(model, run.EXPERTS, way):
            assert torch.allclose(model(ids).logits, plain, atol=1e-5)
        with run.experts_limited(model, run.PER_TOKEN, way):
            assert torch.allclose(model(ids[:, :1]).logits, plain[:, :1], atol=1e-5), (
                "a token alone has all it asks for"
            )
    assert torch.equal(model(ids).logits, plain), "the limit is gone"


@pytest.mark.slow
def test_windows_are_compared_by_their_own_rows(model):
    rows = run.compare(model, [(list(range(5, 45)), 10)], "random")
    assert {(row["window"], row["budget"], row["way"]) for row in rows} == {
        (window, budget, way) for window in run.WINDOWS for budget in run.BUDGETS for way in run.WAYS
    }
    for row in rows:
        assert 0 <= row["tv"] <= (row["kl"] / 2) ** 0.5 + 1e-6, "Pinsker's inequality, for means too"
        assert row["used"] <= row["budget"]
        assert row["positions"] == 30 // row["window"] * row["window"]
