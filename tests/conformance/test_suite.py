"""Right engines pass, and every wrong one is caught, for its own reason."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cactus_decoding.conformance.asking import Answer, EngineError, Query, Sampling
from cactus_decoding.conformance.checks import BATCH, GREEDY, LOGPROBS, SEEDS, Check, checks_of
from cactus_decoding.conformance.evidence import Evidence
from cactus_decoding.conformance.findings import Finding, Report
from cactus_decoding.conformance.mutants import MUTANTS, CertainDraft
from cactus_decoding.conformance.reference import Reference
from cactus_decoding.conformance.report import line, verdict
from cactus_decoding.conformance.suite import conform
from cactus_decoding.conformance.truth import Truth

FIRST = {
    "AcceptsAtZero": "top-k, bad draft",
    "UntruncatedDraft": "temperature, top-k and top-p, bad draft",
    "LatePenalties": "presence and frequency penalties, good draft",
    "WrongOrder": "temperature, top-k and top-p, bad draft",
    "NoTemperature": "temperature, top-k and top-p, bad draft",
    "BiasOnce": "logit bias, good draft",
    "GrammarOnce": "grammar, good draft",
    "SharedSampling": "other samplings in the batch, bad draft",
    "DraftLogprobs": "log-probabilities, bad draft",
    "LostPrefix": "prompts with a shared beginning, good draft",
    "DirtyCancel": "after a cancelled request, good draft",
    "RelaxedGreedy": "temperature 0, good draft",
}
"""The check that catches a mutant; `temperature 1, bad draft` for all others."""


@pytest.fixture(scope="module")
def truth():
    return Truth()


def check_named(name: str) -> Check:
    return next(each for each in checks_of(Reference()) if each.name == name)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__)
def test_every_mutant_is_caught_by_its_check(truth, mutant):
    check = check_named(FIRST.get(mutant.__name__, "temperature 1, bad draft"))
    report = conform(mutant(truth), samples=200, truth=truth, only=[check])
    assert not report
    assert report.findings[0].said


@pytest.mark.parametrize("name", sorted({"temperature 1, bad draft", *FIRST.values()}))
def test_the_right_engine_passes_the_same_checks(truth, name):
    """Each fails by chance with probability 0.001 at most, and the seeds are fixed."""
    assert conform(Reference(truth), samples=100, truth=truth, only=[check_named(name)])


@pytest.mark.parametrize("mistake", ["RecoveryFromDraft", "GreedyFallback", "DropsUnlikely", "OffByOne"])
def test_the_report_names_the_mistake(truth, mistake):
    said = {
        "RecoveryFromDraft": "replaced by draws from the draft's row",
        "GreedyFallback": "replaced by the target's likeliest token",
        "DropsUnlikely": "dropped after they were drawn",
        "OffByOne": "rows of the position before",
    }
    mutant = next(each for each in MUTANTS if each.__name__ == mistake)
    report = conform(
        mutant(truth), samples=200, truth=truth, only=[check_named(FIRST.get(mistake, "temperature 1, bad draft"))]
    )
    assert said[mistake] in report.findings[0].said


def test_a_lossless_engine_that_accepts_too_little_is_right_and_said_to_be_slow(truth):
    report = conform(CertainDraft(truth), samples=100, truth=truth, only=[check_named("temperature 1, good draft")])
    assert report
    found, possible, error = report.acceptance["good"]
    assert found < possible - 0.2 < possible - 5 * error
    assert any("it could accept more" in each for each in verdict(report))


def test_chance_is_no_lack_of_acceptance(truth):
    """20 runs are fewer than 0.02 alarms; standardised differences are out of these bounds with probability 0.002."""

    class Other(Reference):
        def numbers(self, queries):
            return super().numbers([replace(each, seed=each.seed + 10**6) for each in queries])

    checks, lacking, standard = [check_named("temperature 1, bad draft")], [], []
    for run in range(20):
        report = conform(Other(truth), samples=6, seed=1000 * run, truth=truth, only=checks)
        assert not any("could accept more" in each for each in verdict(report))
        found, possible, error = report.acceptance["bad"]
        lacking.append(possible - found)
        standard.append(lacking[-1] / error)
    assert 0.25 < np.square(standard).mean() < 2.5
    assert max(lacking) > 0.05  # which is no reason to say so


def test_transformers_accepts_what_is_possible_unless_its_drafts_end_where_they_are_unsure(truth):
    """The first fails by chance with probability 1e-4."""
    from cactus_decoding.conformance.engines.transformers import TransformersEngine

    checks = [check_named("temperature 1, good draft")]
    for threshold, all_of_it in ((0.0, True), (0.4, False)):
        engine = TransformersEngine({"assistant_confidence_threshold": threshold})
        found = conform(engine, samples=100, truth=truth, only=checks).acceptance["good"]
        assert found.too_little(5e-5) is not all_of_it
        assert found.found < found.possible + 4 * found.error


def test_a_wrong_engine_s_report_says_what_its_other_checks_exclude():
    right, wrong = (Check(name, Sampling()) for name in ("top-k, bad draft", "top-p, bad draft"))
    report = Report("made", 0.001, [Finding(right, True, 9, deviation=0.2), Finding(wrong, False, 9, said="x")])
    assert "Total variation of one of the first three tokens above 0.20 is excluded by each of 1 checks" in "".join(
        verdict(report)
    )


@pytest.mark.parametrize(
    ("name", "settings"), [("transformers", {}), ("llama-cpp", {}), ("llama-cpp", {"class": "cactus"})]
)
def test_engines_forget_a_cancelled_request_and_report_the_target_s_log_probabilities(truth, name, settings):
    from cactus_decoding.conformance.engines.registry import open_engine

    engine = open_engine(name, settings)
    for draft in {"bad", "ngram"} & {*engine.drafts}:
        sampling = Sampling(draft=draft, temperature=0.7, stop_token_ids=(7,))
        plain, cancelled = (Query((1, 2, 3), replace(sampling, cancels=each), 5) for each in (False, True))
        answer = engine.one(plain)
        assert answer.token_ids == engine.one(cancelled).token_ids
        assert (answer.accepted is None) is (name == "llama-cpp" and not settings)
        rows = truth.score((1, 2, 3), [answer.token_ids], sampling)
        expected = np.log(np.take_along_axis(rows.raw_target, rows.tokens[:, None], -1)[:, 0])
        given = answer.logprobs or ()
        np.testing.assert_allclose(given[: len(expected) - 1], expected[: len(given)][: len(expected) - 1], atol=1e-4)
    engine.close()


def test_the_e_value_of_a_right_engine_has_mean_one(truth):
    """An e-value of one response, over all its outcomes: enumerated, not drawn."""
    sampling = Sampling(max_tokens=2, draft="bad")
    law, mean = truth.enumerate((1, 2, 3), sampling, 2), 0.0
    for output, probability in law.items():
        evidence = Evidence()
        rows = truth.score((1, 2, 3), [output], sampling)
        evidence.add(rows, [("prompt", *output[:place]) for place in range(len(output))])
        mean += probability * math.exp(evidence.found().log_e)
    # the law and the rows are read in other batches, of a model in float32, whose sums round by processor
    assert mean == pytest.approx(1, abs=1e-6)


def test_a_callable_is_an_engine(truth):
    inner = Reference(truth)

    def right(prompt, sampling, seed):
        return inner.answer([Query(tuple(prompt), sampling, seed)])[0].token_ids

    check = Check("temperature 1", Sampling(draft="bad", max_tokens=2))
    assert conform(right, samples=40, truth=truth, only=[check])
    wrong = conform(lambda prompt, sampling, seed: [1, 1], samples=40, truth=truth, only=[check])
    assert not wrong
    assert line(wrong.findings[0]).startswith("WRONG")


@pytest.mark.parametrize(
    ("answer", "said"),
    [([], "one or more tokens"), ([99], r"\[0, 10\)"), ("no", "failed"), (None, "failed: TypeError")],
)
def test_nonsense_is_no_verdict(truth, answer, said):
    with pytest.raises(EngineError, match=said):
        conform(lambda prompt, sampling, seed: answer, truth=truth)


def test_wrong_numbers_are_refused(truth):
    with pytest.raises(ValueError, match="false_alarm"):
        conform(Reference(truth), false_alarm=0)
    with pytest.raises(ValueError, match="samples"):
        conform(Reference(truth), samples=0)
    with pytest.raises(TypeError, match="engine"):
        conform(3)


def test_greedy_near_ties_are_rounding_and_gaps_are_not(truth, monkeypatch):
    check = Check("temperature 0", Sampling(temperature=0.0, draft="good"), GREEDY)

    class SecondBest(Reference):
        def recovery(self, target, draft, token):
            return target

        def answer(self, queries):
            [first] = super().answer(queries)
            return [Answer((first.token_ids[0] % 9 + 1, *first.token_ids[1:]))]

    wrong = conform(SecondBest(truth), truth=truth, only=[check]).findings[0]
    assert "no rounding" in wrong.said
    monkeypatch.setattr("cactus_decoding.conformance.suite._NEAR_TIE", 99.0)
    tied = conform(SecondBest(truth), truth=truth, only=[check]).findings[0]
    assert tied.right
    assert "near-tie" in tied.said


def test_seeds_that_do_not_repeat_are_worth_a_note(truth):
    class Restless(Reference):
        asked = 0

        def numbers(self, queries):
            self.asked += 1
            return super().numbers([replace(each, seed=each.seed + 1000 * self.asked) for each in queries])

    report = conform(Restless(truth), truth=truth, only=[Check("a seed repeats", Sampling(draft="bad"), SEEDS)])
    assert report
    assert report.findings[0].right is None
    assert "another response" in report.findings[0].said


def test_log_probabilities_may_be_those_before_temperature(truth):
    from cactus_decoding.conformance.reference import plain

    class Untempered(Reference):
        def answer(self, queries):
            answers = super().answer(queries)
            rows = [
                self.truth.score(q.prompt, [a.token_ids], plain(q.sampling))
                for q, a in zip(queries, answers, strict=True)
            ]
            logs = [np.log(np.take_along_axis(r.target, r.tokens[:, None], -1)[:, 0]) for r in rows]
            return [Answer(a.token_ids, tuple(each.tolist())) for a, each in zip(answers, logs, strict=True)]

    check = Check("log-probabilities", Sampling(temperature=0.7, draft="bad"), LOGPROBS)
    assert conform(Untempered(truth), truth=truth, only=[check])


def test_responses_of_a_batch_are_independent(truth):
    check = Check("independent responses", Sampling(draft="good"), BATCH)
    mutants = {each.__name__: each for each in MUTANTS}
    for name in ("SharedSeeds", "SeedsIgnored"):
        assert "not independent" in conform(mutants[name](truth), truth=truth, only=[check]).findings[0].said
    assert conform(Reference(truth), truth=truth, only=[check])


def test_the_plug_in_fails_a_test_with_the_report(truth):
    from cactus_decoding.conformance.pytest_plugin import check_conforms

    settings = {"samples": 40, "truth": truth, "only": [Check("temperature 1", Sampling(draft="bad", max_tokens=2))]}
    check_conforms(Reference(truth), **settings)
    with pytest.raises(pytest.fail.Exception, match=r"WRONG  temperature 1 .*\n.* is WRONG in 1 of 1 checks"):
        check_conforms(lambda prompt, sampling, seed: [1, 1], **settings)
