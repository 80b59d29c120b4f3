"""Servers, over real HTTP: right, wrong, down, slow, and nonsense."""

import json
import math
import socket
from types import SimpleNamespace

import numpy as np
import pytest
from cactus_conform.checks import Check, checks_of
from cactus_conform.comparison import compare, largest_difference, said
from cactus_conform.engine import EngineError, Sampling
from cactus_conform.engines import open_engine
from cactus_conform.engines.server import answer_of
from cactus_conform.engines.vllm import _answer as vllm_answer
from cactus_conform.mutants import MUTANTS
from cactus_conform.reference import Reference
from cactus_conform.suite import conform
from cactus_conform.truth import Truth
from tiny_server import tiny_server

(RecoveryFromDraft,) = (each for each in MUTANTS if each.__name__ == "RecoveryFromDraft")
CHECK = Check("temperature 1, bad draft", Sampling(draft="bad"))


@pytest.fixture(scope="module")
def truth():
    """The distributions, with models that are there already: no server is to be waited for."""
    made = Truth()
    for name in ("target", "bad"):
        made.logits(name, [(1,)])
    return made


def test_a_right_server_passes_and_a_wrong_one_does_not(truth):
    """The right one fails by chance with probability 0.001 at most; seeds are fixed."""
    for engine, right in ((Reference(truth), True), (RecoveryFromDraft(truth), False)):
        with tiny_server(engine) as address:
            opened = open_engine(address, {"draft": "bad"})
            assert bool(conform(opened, samples=60, truth=truth, only=[CHECK])) is right


def test_stops_that_servers_do_not_tell_apart_are_one(truth):
    """The right one fails by chance with probability 0.001 at most; seeds are fixed."""

    class Deaf(Reference):
        def stops(self, output, drafted):
            return output[-1] == 0

    check = Check("stop tokens", Sampling(stop_token_ids=(7, 2), max_tokens=8, draft="bad"))
    for engine, says in ((Reference(truth), ""), (RecoveryFromDraft(truth), "draft"), (Deaf(truth), "ends the output")):
        with tiny_server(engine) as address:
            [finding] = conform(open_engine(address), samples=100, only=[check]).findings
            assert finding.right is not bool(says)
            assert says in finding.said


def test_only_fields_that_a_server_takes_are_checked(truth):
    with tiny_server(Reference(truth)) as address:
        opened = open_engine(address)
        assert {"top_k", "top_p", "min_p", "presence_penalty", "stop_token_ids"} <= opened.supports
        assert not {"repetition_penalty", "logit_bias"} & opened.supports
        assert not any("repetition" in each.name for each in checks_of(opened))
        assert "top_k" not in open_engine(address, {"without": "top_k,min_p"}).supports


def test_down_slow_and_nonsense_are_one_line_and_code_2(run, truth):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    code, _, err = run(nobody)
    assert code == 2
    assert "cannot be reached" in err
    assert err.count("\n") == 1
    with tiny_server(Reference(truth), wait=1.0) as address:
        code, _, err = run(address, "--set", "timeout=0.2")
        assert (code, err.count("\n")) == (2, 1)
        assert "took more than 0.2 s" in err
    with tiny_server(Reference(truth), spoil=lambda text: "Hello!") as address:
        code, _, err = run(address)
        assert (code, err.count("\n")) == (2, 1)
        assert "the tiny models write the letters" in err


def test_log_probabilities_come_in_two_forms():
    forms = {"token_logprobs": [-1.0, -2.0]}, {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}, None
    choices = [{"text": "ab", "finish_reason": "length", "logprobs": form} for form in forms]
    assert [answer_of({"choices": [choice]}).logprobs for choice in choices] == [(-1, -2), (-1, -2), None]


def test_accepted_proposals_are_read_where_a_server_tells_them():
    said = {"choices": [{"text": "ab", "finish_reason": "length"}]}
    assert answer_of(said).accepted is None
    assert answer_of(said | {"timings": {"predicted_n": 2}}).accepted is None  # nothing was proposed
    assert answer_of(said | {"timings": {"draft_n": 3, "draft_n_accepted": 1}}).accepted == 1
    report = {"speculative_decoding": {"acceptance_report": {"accepted_by_position": [2, 1]}}}
    assert answer_of(said | {"metrics": report}).accepted == 3
    output = {"token_ids": [1, 2, 3, 4], "logprobs": None}
    for counted, accepted in ((SimpleNamespace(histogram=[3, 1, 2]), 5), (None, None)):  # steps that kept 0, 1 and 2
        assert vllm_answer(SimpleNamespace(**output, spec_decode_metrics=counted)).accepted == accepted


def test_settings_of_servers_are_checked():
    with pytest.raises(ValueError, match="no setting 'modle'; known are model,"):
        open_engine("http://127.0.0.1:1", {"modle": "x"})
    with pytest.raises(EngineError, match="cannot be reached"):
        open_engine("http://127.0.0.1:1")


@pytest.mark.slow
def test_two_servers_of_one_distribution_and_of_two(truth):
    """Equal distributions are told apart by chance with probability 0.001 at most; seeds are fixed."""
    for engine, right in ((Reference(truth), True), (RecoveryFromDraft(truth), False)):
        with tiny_server(engine) as first, tiny_server(Reference(truth)) as second:
            servers = [open_engine(address) for address in (first, second)]
            found = compare(*servers, ["abc"], samples=300, max_tokens=6)
            assert found.right is right
            assert said(found)[0].startswith("right" if right else "WRONG")
            assert ("excluded: differences above 0." in said(found)[0]) is right
            assert found.greedy[0] == 1


def test_a_comparison_is_stored_with_what_repeats_it(run, truth, tmp_path):
    """Equal distributions are told apart by chance with probability 0.001 at most; seeds are fixed."""
    (prompts := tmp_path / "prompts.txt").write_text("abc\n\nbca\n")
    file = tmp_path / "found.json"
    with tiny_server(Reference(truth)) as first, tiny_server(Reference(truth)) as second:
        asked = ("--against", second, "--prompts", str(prompts), "--samples", "5", "--output", str(file))
        assert run(first, *asked)[0] == 0
    found = json.loads(file.read_text())
    given = found["provenance"]["arguments"]
    assert (given["engine"], given["against"], given["prompts"]) == (first, second, ["abc", "bca"])
    assert (found["comparison"]["pairs"], found["comparison"]["greedy"][0]) == (5, 2)


def test_differences_are_bounded_and_bounds_hold():
    """Of 200 bounds each fails with probability 0.05 at most: 25 failures or more have probability 1e-4."""
    draw, same = np.random.default_rng(0), []
    for _ in range(200):
        first, second = draw.binomial(5, 0.5, 300), draw.binomial(5, 0.6, 300)
        same.append(largest_difference(first.tolist(), second.tolist(), 0.05))
    distributions = ([math.comb(5, k) * p**k * (1 - p) ** (5 - k) for k in range(6)] for p in (0.5, 0.6))
    true = abs(np.subtract(*map(np.cumsum, distributions))).max()
    assert sum(bound < true for bound in same) < 25
    assert np.mean(same) < true + 0.2


def test_texts_that_part_at_near_ties_are_told_from_others():
    class Server:
        name = "made"

        def __init__(self, letter, gap):
            self.letter, self.gap = letter, gap

        def text(self, prompt, *, temperature, max_tokens, seed):
            return "ab" + self.letter

        def top_logprobs(self, prompt):
            assert prompt == "xab"
            return {"c": -0.7, "d": -0.7 - self.gap}

    class Other(Server):
        def top_logprobs(self, prompt):
            return {"e": -0.7, "c": -0.7001}

    other = compare(Server("c", 0.001), Other("d", 0), ["x"], samples=1)
    assert other.greedy == (1, 1, 0)
    for gap, explained in ((0.001, 1), (0.5, 0)):
        found = compare(Server("c", gap), Server("d", -gap), ["x"], samples=1)
        assert found.greedy == (1, 1, explained)
        assert found.right is bool(explained)
