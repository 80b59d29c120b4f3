"""Recordings: the rows that a lossless run visited, whatever the draft and the sampling, until there are enough."""

from __future__ import annotations

import math

import pytest
import torch
from support.recorded_rows import float64_rows

from cactus_decoding import Request, SamplingParams, load_pair, stream
from cactus_decoding.core.audit import audit
from cactus_decoding.core.drafting.lookup import NgramDrafter
from cactus_decoding.core.pair import Pair
from cactus_decoding.lab.frontier.frontier import LOOSEST, Frontier
from cactus_decoding.lab.frontier.recorded_rows import read_rows
from cactus_decoding.lab.frontier.recording import record_rows
from cactus_decoding.zoo.word_problems import word_problems

EXACT = 1e-10


PROMPT = next(iter(word_problems("validation", seed=0))).prompt


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.6, 20, 0.95)], ids=["plain", "truncated"])
def test_a_recording_holds_what_the_run_visited(sampling, tmp_path):
    pair = load_pair()
    request = Request(num_speculative_tokens=5, sampling=sampling, max_new_tokens=40, seed=4)
    rows = record_rows(pair, [PROMPT] * 3, request, positions=10**6)
    path = tmp_path / "rows.safetensors"
    rows.save(path)
    again = read_rows(path)
    assert again.target.sparse == again.draft.sparse == (sampling.top_k > 0)
    for kept in (rows, again):
        assert kept.problems == 3
        for packed in (kept.target, kept.draft):
            assert float64_rows(packed).sum(-1).allclose(torch.ones(len(packed), dtype=torch.float64))
        # every proposal was drawn from its row
        drafted = kept.drafted.long().unsqueeze(1)
        assert bool((float64_rows(kept.draft).gather(1, drafted) > 0).all())
    assert torch.equal(rows.target.dense(3, 9), again.target.dense(3, 9))
    response = [step for number in range(3) for step in stream(pair, PROMPT, request.replace(seed=4 + number))]
    assert len(rows.problem) == len(response)
    for number, step in enumerate(response):
        mine = rows.step == number
        emitted, drafted = step.token_ids, rows.drafted[mine].tolist()
        kept = min(step.num_accepted, len(drafted))
        assert drafted[: min(kept, len(emitted))] == emitted[:kept]
        assert int(rows.visited[mine].sum()) == min(step.num_accepted + 1, len(drafted))


@pytest.mark.slow
def test_recorded_acceptance_is_what_a_run_shows():
    # A visited proposal that is not its step's last was accepted if the next one was visited. Outcome less chance is a
    # martingale difference within an interval of length 1, so by Hoeffding and Azuma the mean of n of them is beyond
    # 2.7 / sqrt(n) with probability below 1e-6. The chances of the loosest rule must fail.
    pair = load_pair(draft="bundled:draft")  # whose proposals are rejected often enough to tell
    rows = record_rows(pair, [PROMPT] * 8, Request(seed=0), positions=400)
    inner = (rows.step[:-1] == rows.step[1:]) & rows.visited[:-1]
    accepted = rows.visited[1:][inner].double().mean().item()
    target, draft = (float64_rows(packed)[:-1][inner] for packed in (rows.target, rows.draft))
    bound = 2.7 / math.sqrt(len(target))
    assert len(target) > 200
    assert abs(accepted - audit("lossless", target, draft).acceptance.mean().item()) < bound
    assert abs(accepted - audit(LOOSEST, target, draft).acceptance.mean().item()) > bound


def test_lookup_drafts_are_recorded_as_one_hot_rows():
    pair = load_pair()
    lookup = Pair(pair.target, NgramDrafter(), pair.tokenizer, bundled=True)
    rows = record_rows(lookup, [PROMPT] * 2, Request(num_speculative_tokens=4, seed=1), positions=40)
    assert rows.draft.sparse
    assert not rows.target.sparse
    assert torch.equal(rows.draft.dense(0, len(rows.draft)).argmax(-1), rows.drafted.long())
    point = Frontier(rows).measure("lossless")
    target = float64_rows(rows.target)
    drafted = target.gather(1, rows.drafted.long().unsqueeze(1)).squeeze(1)
    assert point.acceptance.value == pytest.approx(drafted[rows.visited].mean().item(), abs=EXACT)


def test_blocks_are_not_recorded():
    # which positions a block visits depends on all of its proposals, and the rates of a rule are those of single ones
    with pytest.raises(ValueError, match="verification must be 'token', but is 'block'"):
        record_rows(load_pair(), [PROMPT], Request(verification="block"), positions=20)


@pytest.mark.slow
def test_recording_stops_where_it_should():
    pair = load_pair()
    request = Request(num_speculative_tokens=4)
    assert 20 <= record_rows(pair, [PROMPT] * 9, request, positions=20).positions < 25
    few = record_rows(pair, [PROMPT] * 9, request, positions=10**6, memory=2 * 1003 * 4 * 256)
    assert 0 < len(few.target) < 600
    with pytest.raises(ValueError, match="the temperature must be above 0"):
        record_rows(pair, [PROMPT], request.replace(sampling=SamplingParams(0)), positions=20)
    with pytest.raises(ValueError, match="lossless steps, but the rule is cactus"):
        record_rows(pair, [PROMPT], request.replace(rule="cactus:delta=1.0"), positions=20)
    with pytest.raises(ValueError, match="the draft proposed nothing"):
        record_rows(pair, [], request, positions=20)
