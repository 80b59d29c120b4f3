"""Traces: the same tokens with and without, and every recorded number against plain forward passes and enumeration."""

from __future__ import annotations

import math
from itertools import pairwise, product

import pytest
import torch
from support.exact_enumeration import enumerate_tokens, fates, paired_rows
from support.rules_under_test import SPELLINGS
from support.tiny_pair import rows_after, tiny_pair
from torch.nn.functional import one_hot

from cactus_decoding import Budget, Fate, Metrics, Proposal, Request, SamplingParams, load_pair, parse_rule, stream
from cactus_decoding.rules.relaxed_greedy import given_up
from cactus_decoding.sampling.params import as_logits_to_probs
from cactus_decoding.sampling.sparse_probs import SparseProbs
from cactus_decoding.tracing import PositionRows, stream_trace, trace_response, what_if
from cactus_decoding.tracing.positions import PositionReader
from cactus_decoding.verification.block import prefix_tests

PROMPT = "Question: Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?\nAnswer:"
ORDINARY = tuple(text for text in SPELLINGS if not text.startswith("relaxed_greedy"))
NEAR = {"abs": 1e-10, "rel": 1e-9}


@pytest.fixture(scope="module")
def pair():
    return tiny_pair()


@pytest.fixture(scope="module")
def bundled():
    return load_pair()


# --- one position ---


def kept(target, draft, drafted, untempered=None):
    rows = [None if row is None else SparseProbs.keep(row) for row in (target, draft, untempered)]
    return PositionRows(drafted, rows[0], rows[1], rows[2])


def kl(h, q):
    return math.fsum(
        a * math.log(a / b) if a > 0 else 0.0 for a, b in zip(h.tolist(), q.tolist(), strict=True) if a > 0
    )


@pytest.mark.parametrize("text", ORDINARY)
def test_a_position_is_what_enumeration_says(text):
    rule = parse_rule(text)
    target, draft = (rows[:24] for rows in paired_rows()[0])
    output, accepted = enumerate_tokens(rule, target, draft)
    keeps, recovery = fates(rule, target, draft)
    for i, (q, p) in enumerate(zip(target, draft, strict=True)):
        for n in p.nonzero().squeeze(1).tolist():
            seen = what_if(kept(q, p, n), rule)
            assert seen.rule == str(rule)
            torch.testing.assert_close(seen.emitted, output[i], atol=1e-11, rtol=0)
            assert seen.acceptance == pytest.approx(accepted[i].sum().item(), abs=1e-11)
            assert seen.acceptance_prob == pytest.approx(keeps[i, n].item(), abs=1e-11)
            assert seen.tv == pytest.approx((output[i] - q).abs().sum().item() / 2, abs=1e-11)
            if rule.relaxed_target(q, p) is not None:
                torch.testing.assert_close(seen.relaxed, seen.emitted, atol=1e-9, rtol=0)
            elif seen.acceptance_prob < 1 - 1e-9:  # h alone says what is recovered
                weights = seen.relaxed if math.isinf(seen.residual_scale) else (seen.relaxed - p).clamp(min=0)
                if weights.sum() > 1e-9:
                    torch.testing.assert_close(weights / weights.sum(), recovery[i, n], atol=1e-9, rtol=0)


@pytest.mark.parametrize("text", ["lossless", "cactus:delta=0.1", "clamped:width=0.5", "typical", "top_k:k=2"])
def test_nats_are_sums_over_the_rows(text):
    target, draft = paired_rows()[1]
    for q, p in zip(target[:20], draft[:20], strict=True):
        seen = what_if(kept(q, p, int(p.argmax())), text)
        if ((q == 0) & (seen.relaxed > 0)).any():
            assert math.isinf(seen.conditional_nats)
        else:
            assert seen.conditional_nats == pytest.approx(max(kl(seen.relaxed, q), 0), abs=1e-10)
        assert seen.emitted_nats == pytest.approx(max(kl(seen.emitted, q), 0), abs=1e-10)


def test_given_a_deterministic_draft_the_condition_always_holds():
    target, _ = paired_rows()[1]
    for q in target[:6]:
        for n in q.nonzero().squeeze(1).tolist():
            for rule in ("cactus:delta=0.3", "cactus:delta=0.3,solver=exact", "clamped:width=1"):
                seen = what_if(kept(q, None, n), rule)
                torch.testing.assert_close(seen.relaxed, seen.emitted, atol=1e-9, rtol=0)
                assert seen.conditional_nats == pytest.approx(seen.emitted_nats, abs=1e-8)
                assert what_if(kept(q, one_hot(torch.tensor(n), len(q)).double(), n), rule).acceptance_prob == (
                    pytest.approx(seen.acceptance_prob, abs=1e-9)
                )


def test_relaxed_greedy_gives_up_log_probability():
    untempered = torch.tensor([0.5, 0.4, 0.1], dtype=torch.float64)
    target = torch.tensor([1.0, 0.0, 0.0])
    rows = {n: kept(target, None, n, untempered) for n in range(3)}
    seen = [what_if(rows[n], "relaxed_greedy:margin=0.3") for n in range(3)]
    assert [one.acceptance_prob for one in seen] == [1, 1, 0]
    assert [one.emitted.argmax().item() for one in seen] == [0, 1, 0]
    assert [one.emitted_nats for one in seen] == pytest.approx([0, math.log(5 / 4), 0])
    assert [one.tv for one in seen] == [0, 1, 0]
    drawn = what_if(kept(target, torch.tensor([0.2, 0.3, 0.5]), 1, untempered), "relaxed_greedy:margin=0.3")
    assert drawn.emitted.tolist() == pytest.approx([0.7, 0.3, 0])
    assert drawn.emitted_nats == pytest.approx(0.3 * math.log(5 / 4))
    assert drawn.conditional_nats == pytest.approx(math.log(5 / 4))
    with pytest.raises(ValueError, match="relaxed_greedy is a rule for temperature 0"):
        what_if(kept(untempered, None, 0), "relaxed_greedy:margin=0.3")


def test_what_is_no_distribution_has_no_conditional_nats():
    class Halved:
        def judge(self, target_probs, draft_probs, token_ids):
            verdict = parse_rule("lossless").judge(target_probs, draft_probs, token_ids)
            return verdict._replace(residual_scale=verdict.residual_scale / 2)

        def recovery_target(self, target_probs):
            return target_probs

        def relaxed_target(self, target_probs, draft_probs):
            return None

    half = torch.tensor([0.5, 0.5])
    assert math.isnan(what_if(kept(half, half, 0), Halved()).conditional_nats)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kept_rows_keep_every_bit(dtype):
    dense, sparse = torch.rand(50).to(dtype).softmax(-1), torch.zeros(50, dtype=dtype)
    sparse[[3, 7]] = torch.tensor([0.3, 0.7], dtype=dtype)
    for row, is_sparse in ((dense, False), (sparse, True)):
        there = SparseProbs.keep(row)
        assert (there.token_ids is not None) == is_sparse
        assert there.dense().dtype == dtype
        assert torch.equal(there.dense(), row)
    rows = torch.rand(2, 50)
    there = SparseProbs.keep(rows[0])
    assert there.probs.untyped_storage().nbytes() == 50 * 4  # no more than the row is held on to


# --- whole responses ---


SETTINGS = {
    "lossless": {},
    "cactus": {"rule": "cactus:delta=0.5"},
    "exact cactus, truncated": {"rule": "cactus:delta=0.5,solver=exact", "top_k": 12, "temperature": 0.8},
    "clamped": {"rule": "clamped:width=1.0", "min_p": 0.01},
    "typical": {"rule": "typical", "top_p": 0.9},
    "top-k": {"rule": "top_k:k=20"},
    "temperature 0": {"rule": "cactus:delta=1.0", "temperature": 0},
    "relaxed greedy": {"rule": "relaxed_greedy:margin=1.0", "temperature": 0},
    "relaxed greedy, limited": {"rule": "relaxed_greedy:margin=2.0", "temperature": 0, "budget": 1.0},
    "block": {"rule": "clamped:width=1.0", "verification": "block"},
    "block, limited": {"rule": "ensemble:weight=0.5", "verification": "block", "budget": 0.3},
    "lossless block": {"verification": "block"},
    "limited": {"rule": "cactus:delta=0.5", "budget": 0.8},
    "limited, typical": {"rule": "typical:recovery=sample", "budget": Budget(max_shift=0.5)},
    "paced": {"rule": "clamped:width=1.0", "budget": Budget(nats=0.5, expected_tokens=20)},
    "measured": {"rule": "clamped:width=1.0", "budget": math.inf},
    "no proposals": {"num_speculative_tokens": 0, "rule": "cactus:delta=1.0"},
    "adapting": {"num_speculative_tokens": "confidence:threshold=0.05"},
}


NEEDS_A_MODEL = ("block", "block, limited")
"""Block verification of a relaxed rule, which lookup in the text cannot have."""


def with_each_draft(names):
    lookups = [(name, "ngram") for name in names if name not in NEEDS_A_MODEL]
    return [*((name, "model") for name in names), *lookups]


@pytest.mark.parametrize(("name", "draft"), with_each_draft(SETTINGS))
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


ENUMERATED = (
    "lossless",
    "cactus",
    "exact cactus, truncated",
    "clamped",
    "typical",
    "top-k",
    "temperature 0",
    "block",
    "limited",
    "paced",
    "no proposals",
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "draft"), with_each_draft(ENUMERATED))
def test_recorded_numbers_against_forward_passes_and_enumeration(name, draft):
    pair = tiny_pair(draft)
    settings = {"num_speculative_tokens": 3, "max_new_tokens": 8, "seed": 5} | SETTINGS[name]
    trace = trace_response(pair, PROMPT, **settings)
    sampling = SamplingParams(**{key: settings[key] for key in vars(SamplingParams()) if key in settings})
    drafted = check_positions(pair, trace, sampling)
    assert (drafted > 0) == (name != "no proposals")


def test_kept_rows_give_the_recorded_numbers_again(pair):
    trace = trace_response(pair, PROMPT, rule="cactus:delta=0.5", seed=1, max_new_tokens=12, keep_rows=True)
    drafted = [position for position in trace.positions if position.fate is not Fate.BONUS]
    for position in drafted:
        seen = what_if(position.rows, position.rule)
        assert seen.emitted_nats == position.emitted_nats
        assert seen.acceptance_prob == position.acceptance_prob
        assert what_if(position.rows, "lossless").emitted_nats == 0
    assert all(position.rows is None for position in trace.positions if position.fate is Fate.BONUS)
    without = trace_response(pair, PROMPT, seed=1, max_new_tokens=4, keep_rows=False)
    assert all(position.rows is None for position in without.positions)


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
            charged = what_if(position.rows, position.rule).emitted_nats
            assert position.emitted_nats == pytest.approx(charged, abs=1e-11)


def test_joint_acceptance_is_that_of_the_prefix_whatever_follows(bundled):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, generator=generator, dtype=torch.float64) * 1.5
    draft = (torch.randn(3, 3, generator=generator, dtype=torch.float64) * 1.5).softmax(-1)
    request, to_probs = Request("clamped:width=0.4", verification="block"), as_logits_to_probs(SamplingParams())
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


# --- ends and texts ---


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


def test_stop_strings_are_cut_from_the_text_only(bundled):
    trace = trace_response(bundled, PROMPT, seed=5, stop=["####"])
    assert "####" not in trace.text
    joined = "".join(position.text for position in trace.positions)
    assert joined.startswith(trace.text)
    assert "####" in joined


def test_special_tokens_are_called_by_their_name(bundled):
    trace = trace_response(bundled, PROMPT, temperature=0)
    assert (trace.positions[-1].token, trace.positions[-1].text) == ("<eos>", "")


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
    assert (header.target, header.draft, header.vocabulary) == ("bundled", "bundled", 1003)
    assert request.budget == budget
    assert header.provenance["arguments"]["seed"] == request.seed
    again = trace_response(bundled, PROMPT, rule="cactus:delta=0.5", seed=request.seed, **settings)
    assert again.token_ids == trace.token_ids
    named = trace_response(tiny_pair("ngram"), PROMPT, seed=0, max_new_tokens=2, target="mine").header
    assert (named.target, named.draft) == ("mine", "ngram")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"top_candidates": 0}, ValueError, "top_candidates must be at least 1"),
        ({"rule": "frob"}, ValueError, "unknown rule 'frob'"),
        ({"top_p": 0}, ValueError, "top_p must be in"),
        ({"frob": 1}, TypeError, "a request has no 'frob'"),
        ({"rule": "relaxed_greedy:margin=1"}, ValueError, "set the temperature to 0"),
        ({"seed": -1}, ValueError, "seed must be between"),
        ({"budget": "much"}, TypeError, "budget must be a Budget or a number of nats"),
    ],
)
def test_wrong_arguments(bundled, arguments, error, message):
    with pytest.raises(error, match=message):
        stream_trace(bundled, PROMPT, **arguments)
