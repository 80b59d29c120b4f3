"""The loop over real models: greedy equality, the sampled law, cache rollback, and how responses end."""

from __future__ import annotations

import pytest
import torch
from support.loop_runs import PROMPT, run, tokens
from support.tiny_models import tiny_llama

from cactus_decoding import Fate, ModelDrafter, NgramDrafter, SamplingParams
from cactus_decoding.engines.transformers.cached_model import CachedModel

KL_RULES = [
    "lossless",
    "cactus:delta=1.0",
    "cactus:delta=1.0,solver=exact",
    "clamped:width=1.0",
    "lenience:lenience=0.5",
]
EVERY_KIND = [*KL_RULES, "ensemble:weight=0.5", "typical", "top_k:k=2"]


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return CachedModel(tiny_llama(0))


@pytest.fixture(scope="module")
def draft():
    return tiny_llama(1)


@pytest.mark.parametrize("rule", EVERY_KIND)
@pytest.mark.parametrize("k", [1, 3, 7])
def test_temperature_zero_equals_plain_greedy_decoding(target, draft, rule, k):
    plain = target.model.generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=40, pad_token_id=0)
    for drafter in (ModelDrafter(draft), NgramDrafter()):
        steps = run(target, drafter, rule, k, length=43, sampling=SamplingParams(temperature=0))
        assert tokens(steps) == plain[0, 3:].tolist()


@pytest.mark.parametrize(
    "rule", ["cactus:delta=0", "cactus:delta=0,solver=exact", "clamped:width=0", "ensemble:weight=0"]
)
def test_a_knob_at_zero_equals_lossless_token_for_token(target, draft, rule):
    for seed in range(20):
        same = [tokens(run(target, ModelDrafter(draft), r, seed=seed)) for r in (rule, "lossless")]
        assert same[0] == same[1]


# Each of these tests fails by chance with probability 1e-6 at most (the generator is fixed, so: always or never).


@pytest.mark.parametrize("rule", ["lossless", "cactus:delta=1.0"])
def test_the_cache_after_rejections_is_that_of_a_fresh_pass(target, draft, rule):
    steps = run(target, ModelDrafter(draft), rule, length=30)
    assert any(step.num_accepted < step.num_drafted for step in steps)
    ids = PROMPT + tokens(steps)
    rest = ids[target.length :]
    continued = target.append([*rest, 5], rows=1)
    with torch.no_grad():
        fresh = target.model(torch.tensor([[*ids, 5]])).logits[0, -1:]
        other = target.model(torch.tensor([[*ids[:-1], (ids[-1] + 1) % 8, 5]])).logits[0, -1:]
    # the model's norms work in float32; a cache with one wrong token is five orders of magnitude further away
    torch.testing.assert_close(continued, fresh, rtol=0, atol=1e-5)
    assert (other - fresh).abs().max() > 0.01


def test_steps_count_what_happened(target, draft):
    for step in run(target, ModelDrafter(draft), "cactus:delta=0.5", length=40):
        assert len(step.fates) == len(step.token_ids) <= step.num_accepted + 1
        assert step.num_relaxed <= step.num_accepted <= step.num_drafted <= 4
        if step.finish_reason is None:
            last = Fate.BONUS if step.num_accepted == step.num_drafted else Fate.RECOVERED
            assert step.fates[-1] == last
            assert step.fates.count(Fate.RELAXED) == step.num_relaxed


def test_stops_at_the_first_stop_token_inside_a_block(target):
    drafter = ModelDrafter(target.model)  # the target drafts for itself: everything is accepted, blocks are full
    whole = tokens(run(target, drafter, k=6, length=40))
    stop_token = whole[3]
    steps = run(target, drafter, k=6, length=40, stop=lambda ids: ids[-1] == stop_token)
    assert tokens(steps) == whole[: whole.index(stop_token) + 1]
    assert steps[-1].finish_reason == "stop"


def test_a_perfect_draft_is_always_accepted(target):
    steps = run(target, ModelDrafter(target.model), k=5, length=60)
    assert all(step.num_accepted == step.num_drafted for step in steps)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([5, 6, 7, 5, 6], [7, 5, 6]), ([1, 2, 9, 1, 2, 8, 1, 2], [8, 1, 2]), ([1, 2, 3], []), ([4], []), ([7, 7], [7])],
)
def test_ngram_lookup_takes_the_latest_longest_match(ids, expected):
    assert NgramDrafter().propose(ids, 3, lambda logits, _: logits, None).token_ids == expected
