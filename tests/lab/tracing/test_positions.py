"""Every number recorded of a position, against plain forward passes and enumeration; responses that are left alone."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch
from support.block_tests import prefix_tests
from support.exact_enumeration import enumerate_tokens
from support.tables import all_of
from support.tiny_pair import rows_after, tiny_pair
from support.traces import PROMPT, SETTINGS, kl, with_each_draft
from torch.nn.functional import one_hot

from cactus_decoding import Budget, Fate, Metrics, Proposal, Request, SamplingParams, parse_rule, stream
from cactus_decoding.core.rules.relaxed_greedy import given_up
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.lab.tracing import stream_trace, trace_response, what_if
from cactus_decoding.lab.tracing.positions import PositionReader, TokenNames

NEAR = {"abs": 1e-10, "rel": 1e-9}
ENUMERATED = ("lossless", "cactus", "exact cactus, truncated", "clamped", "typical", "top-k", "temperature 0", "block",
              "limited", "paced", "no proposals")  # fmt: skip


def check_positions(pair, trace, sampling):
    """Compare all positions with plain forward passes and enumeration; return how many had a proposal.

    Attention rounds to float32 in places, so that passes over blocks and over single tokens differ in the eighth digit:
    rows are compared with passes to within that, and everything else with enumeration of these rows, exactly.
    """
    prompt = pair.tokenizer(PROMPT).input_ids
    token_ids = [position.token_id for position in trace.positions]
    drafted = 0
    for place, position in enumerate(trace.positions):
        q, p, untempered = rows_after(pair, prompt + token_ids[:place], sampling)
        if position.rows is not None:
            for passed, row in ((q, position.rows.target), (p, position.rows.draft)):
                assert (passed is None) == (row is None)
                if row is not None:
                    torch.testing.assert_close(row.dense(), passed, atol=1e-6, rtol=0)
            q, p = position.rows.target.dense(), None if p is None else position.rows.draft.dense()
        law = one_hot(torch.tensor(position.drafted_id or 0), len(q)).double() if p is None else p
        output = q
        if position.fate is not Fate.BONUS:
            drafted += 1
            judge = parse_rule(position.rule)
            output, accepted = (rows[0] for rows in enumerate_tokens(judge, q.unsqueeze(0), law.unsqueeze(0)))
            n = position.drafted_id
            assert position.draft_prob == pytest.approx(law[n].item(), **NEAR)
            if position.acceptance is not None:
                assert position.acceptance == pytest.approx(accepted.sum().item(), **NEAR)
                assert position.acceptance_prob == pytest.approx(accepted[n].item() / law[n].item(), **NEAR)
            assert position.emitted_nats == pytest.approx(kl(output, q), abs=1e-9)
            assert position.tv == pytest.approx((output - q).abs().sum().item() / 2, abs=1e-9)
            assert (position.fate is Fate.RECOVERED) or n == position.token_id
        listed = {one.token_id: one for one in position.candidates}
        assert {position.token_id} | ({position.drafted_id} - {None}) <= set(listed)
        assert set(untempered.topk(5).indices.tolist()) <= set(listed)
        for token_id, one in listed.items():
            assert one.untempered == pytest.approx(untempered[token_id].item(), abs=1e-6)
            near = {"abs": 1e-6} if position.fate is Fate.BONUS else NEAR
            assert one.target == pytest.approx(q[token_id].item(), **near)
            assert one.emitted == pytest.approx(output[token_id].item(), **near)
            if position.fate is not Fate.BONUS:
                assert one.draft == pytest.approx(law[token_id].item(), **NEAR)
        assert listed[position.token_id].emitted > 0
    return drafted


@pytest.mark.slow
@pytest.mark.parametrize(("name", "draft"), with_each_draft(ENUMERATED))
def test_recorded_numbers_against_forward_passes_and_enumeration(name, draft):
    pair = tiny_pair(draft)
    settings = {"num_speculative_tokens": 3, "max_new_tokens": 8, "seed": 5} | SETTINGS[name]
    trace = trace_response(pair, PROMPT, **settings)
    sampling = SamplingParams(**{key: settings[key] for key in vars(SamplingParams()) if key in settings})
    drafted = check_positions(pair, trace, sampling)
    assert (drafted > 0) == (name != "no proposals")


def test_where_the_budget_is_gone_lossless_decides(pair):
    settings = {"rule": "cactus:delta=1.0", "budget": 0.5, "max_new_tokens": 40, "seed": 2}
    trace = trace_response(pair, PROMPT, **settings)
    fell_back = [position for position in trace.positions if position.fell_back]
    assert len(fell_back) == trace.metrics.fell_back > 3
    for position in fell_back:
        assert position.rule == "lossless"
        assert position.emitted_nats == 0 == position.conditional_nats
        assert position.tv < 1e-12
        assert all(one.emitted == pytest.approx(one.target, abs=1e-12) for one in position.candidates)
        assert position.fate is not Fate.RELAXED
    left = [0.5, *(position.budget_left for position in trace.positions)]
    for (before, after), position in zip(pairwise(left), trace.positions, strict=True):
        assert 0 <= after <= before
        assert before - after == pytest.approx(position.emitted_nats, abs=1e-12)


def test_a_width_that_is_moved_is_the_one_that_decided(pair):
    budget = Budget(nats=0.5, expected_tokens=30)
    trace = trace_response(pair, PROMPT, rule="clamped:width=1.0", budget=budget, max_new_tokens=40, seed=3)
    widths = {position.rule for position in trace.positions if position.fate is not Fate.BONUS} - {"lossless"}
    assert len(widths) > 3
    for position in trace.positions:
        if position.fate is not Fate.BONUS and not position.fell_back:
            charged = what_if(position.rows, position.rule)
            assert position.emitted_nats == pytest.approx(charged.emitted_nats, abs=1e-11)
            assert position.acceptance_prob == pytest.approx(charged.acceptance_prob, abs=1e-11)


def test_joint_acceptance_is_that_of_the_prefix_whatever_follows(bundled):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, generator=generator, dtype=torch.float64) * 1.5
    draft = (torch.randn(3, 3, generator=generator, dtype=torch.float64) * 1.5).softmax(-1)
    request, to_probs = Request("clamped:width=0.4", verification="block"), SamplingFn(SamplingParams())
    verifier = request.verifier(to_probs, to_probs)
    relaxed = request.rule.relaxed_target(to_probs(logits[:3], []), draft)
    seen: dict[tuple[int, ...], float] = {}
    for drafted in product(range(3), repeat=3):
        for _ in range(5):
            proposal = Proposal(list(drafted), draft)
            _, outcome = verifier(verifier.begin(), logits, [0, *drafted], proposal, generator)
            for i, position in enumerate(PositionReader(bundled.tokenizer, request).read(outcome)[:3]):
                assert position.acceptance is None
                assert seen.setdefault(drafted[: i + 1], position.acceptance_prob) == position.acceptance_prob
    assert len(seen) > 25  # a prefix that is never kept is never looked behind
    for prefix, probability in seen.items():
        expected = 0.0
        for rest in product(range(3), repeat=3 - len(prefix)):
            ids = torch.tensor([[*prefix, *rest]])
            chance = math.prod(draft[len(prefix) + i, token].item() for i, token in enumerate(rest))
            _, passes = prefix_tests(relaxed.unsqueeze(0), draft.unsqueeze(0), ids, torch.tensor([3]))
            fails = math.prod(1 - passed for passed in passes[0, len(prefix) - 1 :].tolist())
            expected += chance * (1 - fails)
        assert probability == pytest.approx(expected, abs=1e-12)


def test_a_tree_that_does_not_branch_says_what_a_chain_does(pair):
    tree = "static=1.1.1,drawn=1"
    asked = {"rule": "clamped:width=1", "seed": 3, "max_new_tokens": 30}
    ways = {"block": {"num_speculative_tokens": 3}, "joint": {"tree": tree}}
    told = {}
    for name, more in ways.items():
        positions = trace_response(pair, PROMPT, verification=name, **asked, **more).positions
        told[name] = [position.acceptance_prob for position in positions]
    assert any(each is not None and 0 < each < 1 for each in told["block"])
    assert told["joint"] == pytest.approx(told["block"], abs=1e-6)


def test_relaxed_greedy_in_a_response(pair):
    trace = trace_response(pair, PROMPT, rule="relaxed_greedy:margin=1.5", temperature=0, max_new_tokens=40)
    relaxed = [position for position in trace.positions if position.fate is Fate.RELAXED]
    assert relaxed
    for position in trace.positions:
        best = max(position.candidates, key=lambda one: one.untempered)
        mine = next(one for one in position.candidates if one.token_id == position.token_id)
        assert mine.emitted == 1
        gap = math.log(best.untempered / mine.untempered)
        assert position.emitted_nats == pytest.approx(gap, abs=1e-9)
        assert (position.fate is Fate.RELAXED) == (position.tv == 1) == (gap > 0)
        if position.rows is not None:
            row = position.rows.untempered.dense()
            assert given_up(row, torch.tensor([position.token_id])).item() == pytest.approx(gap, abs=1e-9)


def test_what_a_step_verified_behind_the_end_is_there_but_not_emitted(bundled):
    for seed in range(40):
        settings = {"rule": "top_k:k=400", "budget": math.inf, "stop": [" "], "seed": seed}
        trace = trace_response(bundled, PROMPT, **settings)
        behind = [position for position in trace.positions if not position.emitted]
        if behind:
            break
    response = stream(bundled, PROMPT, **settings)
    for _ in response:
        pass
    assert trace.token_ids == response.token_ids
    assert trace.text == response.text == ""
    assert all(position.text == "" for position in behind)
    assert {position.step for position in behind} == {trace.steps[-1].step}
    assert math.fsum(position.emitted_nats for position in trace.positions) == pytest.approx(response.metrics.nats)
    assert trace.metrics.generated == len(response.token_ids) < len(trace.positions)


def test_texts_add_up_where_characters_are_torn_apart():
    pair = tiny_pair(sharpness=0.5)
    for seed in range(3):
        trace = trace_response(pair, "Zoë 漢字", seed=seed, max_new_tokens=60)
        assert "".join(position.text for position in trace.positions) == trace.text
        assert all(position.token for position in trace.positions)
        assert "�" in trace.text
    steps = stream_trace(pair, "Zoë 漢字", seed=0, max_new_tokens=60)
    text = ""
    for step in steps:
        text += "".join(position.text for position in step.positions)
        assert steps.trace.text.startswith(text)


@all_of("name, draft", with_each_draft(SETTINGS))
def test_looking_on_changes_nothing(name, draft):
    settings = {"num_speculative_tokens": 4, "max_new_tokens": 24, "seed": 5} | SETTINGS[name]
    plain, pair = tiny_pair(draft), tiny_pair(draft)
    response, traced = stream(plain, PROMPT, **settings), stream_trace(pair, PROMPT, **settings)
    for step in response:
        seen = next(traced)
        assert (seen.token_ids, seen.fates) == (step.token_ids, step.fates)
        assert (seen.num_drafted, seen.num_accepted, seen.finish_reason) == (
            step.num_drafted, step.num_accepted, step.finish_reason)  # fmt: skip
        assert len(seen.positions) == step.num_accepted + 1
        counts, wanted = seen.metrics(), Metrics.of(step)
        counts.seconds = wanted.seconds
        assert counts == wanted
        if step.nats is not None:
            assert [position.emitted_nats for position in seen.positions[: len(step.nats)]] == step.nats
    with pytest.raises(StopIteration):
        next(traced)
    trace = traced.trace
    assert trace.text == response.text == "".join(position.text for position in trace.positions)
    assert trace.finish_reason == response.finish_reason
    assert [position.place for position in trace.positions] == list(range(len(trace.positions)))
    assert trace.positions[-1].budget_left == (
        None if response.budget_left is None else pytest.approx(response.budget_left, abs=1e-12)
    )
    assert traced.response.budget_left == response.budget_left


def test_seconds_leave_out_the_tracing_and_add_up(bundled):
    traced = stream_trace(bundled, PROMPT, seed=0)
    for step in traced:
        assert step.target_seconds is not None
        assert 0 < step.target_seconds + step.verify_seconds < step.seconds
    trace = traced.trace
    assert trace.metrics.seconds == pytest.approx(sum(step.seconds for step in trace.steps))
    assert traced.response.metrics.seconds == trace.metrics.seconds


def test_the_header_says_what_was_asked_for(bundled):
    budget = Budget(max_shift=0.2)
    settings = {"budget": budget, "top_p": 0.9, "stop": ["x"], "max_new_tokens": 5}
    trace = trace_response(bundled, PROMPT, rule="cactus:delta=0.50", **settings)
    header = trace.header
    request = header.request
    assert (str(request.rule), request.sampling, request.stop) == (
        "cactus:delta=0.5", SamplingParams(top_p=0.9, temperature=1.0), ("x",))  # fmt: skip
    assert (header.target, header.draft, header.vocabulary) == ("bundled", "bundled:worded", 1003)
    assert request.budget == budget
    assert header.provenance["arguments"]["seed"] == request.seed
    again = trace_response(bundled, PROMPT, rule="cactus:delta=0.5", seed=request.seed, **settings)
    assert again.token_ids == trace.token_ids
    named = trace_response(tiny_pair("ngram"), PROMPT, seed=0, max_new_tokens=2, target="mine", keep_rows=False)
    assert (named.header.target, named.header.draft) == ("mine", "ngram")
    assert all(position.rows is None for position in named.positions)
    stopped = trace_response(bundled, PROMPT, seed=5, stop=["####"])  # which is cut from the text only
    joined = "".join(position.text for position in stopped.positions)
    assert joined.startswith(stopped.text)
    assert ("####" in joined, "####" in stopped.text) == (True, False)


def test_every_token_has_a_name_of_its_own_kind(bundled):
    name = TokenNames(bundled.tokenizer)
    (word,) = bundled.tokenizer(" has", add_special_tokens=False).input_ids
    assert name(word) == " has"
    byte = next(i for i in range(256) if "\ufffd" in bundled.tokenizer.decode([i]))
    assert name(byte) == bundled.tokenizer.convert_ids_to_tokens(byte)
    assert name(10_000) == "#10000"  # logits are often padded
    trace = trace_response(bundled, PROMPT, temperature=0)
    assert (trace.positions[-1].token, trace.positions[-1].text) == ("<eos>", "")
