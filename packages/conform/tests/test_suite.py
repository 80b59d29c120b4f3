"""Right engines pass, and every wrong one is caught, for its own reason."""

import itertools
import json
import math
import re
import threading
from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cactus_conform.causes import reused_noise, reused_number
from cactus_conform.checks import BATCH, COUPLED, GREEDY, LOGPROBS, SEEDS, Check, checks_of
from cactus_conform.engine import VOCABULARY, EngineAnswer, EngineError, Query, Sampling
from cactus_conform.engines import open_engine
from cactus_conform.engines.transformers import TransformersEngine
from cactus_conform.evidence import Evidence, deviation_not_excluded
from cactus_conform.models import PROMPTS
from cactus_conform.mutants import MUTANTS, CertainDraft
from cactus_conform.pytest_plugin import check_conforms
from cactus_conform.reference import Reference, plain
from cactus_conform.report import ConformanceReport, Finding, gate_verdict, line, verdict
from cactus_conform.suite import FALSE_ALARM, conform
from cactus_conform.truth import Truth, Wanted, arrival_times, expected_token, philox

pytest_plugins = ["pytester"]
PLAIN = "temperature 1, bad draft"
CUT = "temperature, top-k and top-p, bad draft"
CAUGHT = {
    "RecoveryFromTarget": (PLAIN, r"draws from the target's row, not from \(target - draft\)\+"),
    "RecoveryFromDraft": (PLAIN, "replaced by draws from the draft's row"),
    "GreedyFallback": (PLAIN, "replaced by the target's likeliest token"),
    "DropsUnlikely": (PLAIN, "dropped after they were drawn"),
    "OffByOne": (PLAIN, "rows of the position before"),
    "Lenient": (PLAIN, "accepts too much"),
    "ReusedUniform": (PLAIN, "the number that rejects a token draws the next one"),
    "OneUniform": (PLAIN, "one random number tests all proposals of a step"),
    "ShortRow": (PLAIN, "after a full acceptance a row that is short by one token is drawn from"),
    "SharedSeeds": (PLAIN, "responses repeat each other"),
    "SeedsIgnored": (PLAIN, "responses repeat each other"),
    "EatenStop": (PLAIN, "ends that were proposed are left out"),
    "AcceptsAtZero": ("top-k, bad draft", "exclude, as token .*the test is <="),
    "UntruncatedDraft": (CUT, "."),
    "LatePenalties": ("presence and frequency penalties, good draft", "."),
    "ReusedNoise": (
        "rejections in a row: 12 tokens, bad draft",
        "the noise that drew a rejected token draws the next one",
    ),
    "HotDraft": (CUT, "proposals are drawn at temperature 1, and tested as if at the asked one"),
    "OneMore": ("top-k, bad draft", "exclude, as token .* one token more than top-k is kept"),
    "MinPOfAll": ("min-p, bad draft", "min-p is compared with probabilities"),
    "WrongOrder": (CUT, "exclude, as token .* in the other order"),
    "NoTemperature": (CUT, "exclude, as token .* the temperature is not applied"),
    "BiasOnce": ("logit bias, good draft", "."),
    "GrammarOnce": ("grammar, good draft", "exclude, as token .* are not applied"),
    "SharedSampling": ("other samplings in the batch, bad draft", "."),
    "DraftLogprobs": ("log-probabilities, bad draft", "."),
    "LostPrefix": ("prompts with a shared beginning, good draft", "."),
    "DirtyCancel": ("after a cancelled request, good draft", "given up leaves something in the cache"),
    "RelaxedGreedy": ("temperature 0, good draft", "."),
}
"""The check that catches a mutant, and how its report names the mistake; `PLAIN`, and in any way, for all others."""
NAMED = {each.__name__: each for each in MUTANTS}
TWO = Check("temperature 1", Sampling(draft="bad", max_tokens=2))


@pytest.fixture(scope="module")
def truth():
    return Truth()


def check_named(name: str) -> Check:
    return next(each for each in checks_of(Reference()) if each.name == name)


@pytest.mark.parametrize("mutant", NAMED)
def test_every_mutant_is_caught_by_its_check_and_named(truth, mutant):
    check, said = CAUGHT.get(mutant, (PLAIN, "."))
    report = conform(NAMED[mutant](truth), samples=200, truth=truth, only=[check_named(check)])
    assert not report
    assert re.search(said, report.findings[0].said)


@pytest.mark.parametrize("name", sorted({PLAIN, *(check for check, _ in CAUGHT.values())}))
def test_the_right_engine_passes_the_same_checks(truth, name):
    """Each fails by chance with probability 0.001 at most, and the seeds are fixed."""
    assert conform(Reference(truth), samples=100, truth=truth, only=[check_named(name)])


def test_a_cancelled_request_is_not_suspected_of_what_was_wrong_before(truth):
    class Dirty(Reference):
        def read(self, query):
            return (*query.prompt[:-1], query.prompt[-1] % 9 + 1)

    names = "temperature 1, good draft", "after a cancelled request, good draft"
    plain, cancelled = conform(Dirty(truth), truth=truth, only=[check_named(name) for name in names]).findings
    assert plain.said.startswith("no known mistake")
    assert cancelled.said.startswith("no known mistake")


def test_what_a_number_that_is_used_twice_leads_to_by_hand():
    target, draft = np.array([[0.5, 0.2, 0.3]]), np.array([[0.1, 0.6, 0.3]])
    rows = SimpleNamespace(target=target, draft=draft)
    # token 1 alone is rejected, by numbers from 1/3 on; all that is left is token 0's, whatever the number
    np.testing.assert_allclose(reused_number(rows), [[0.1 + 0.4, 0.2, 0.3]], atol=1e-12)
    target, draft = np.array([[0.3, 0.0, 0.5, 0.2]]), np.array([[0.1, 0.5, 0.1, 0.3]])
    kept, ends = np.minimum(target, draft)[0], np.array([0, 1 / 3, 1 / 3, 1, 1])  # of the tokens' parts of [0, 1)
    expected = kept + [
        sum(share * max(0.0, high - max(low, ratio)) for share, ratio in ((0.5, 0.0), (0.3, 2 / 3)))
        for low, high in itertools.pairwise(ends)
    ]
    np.testing.assert_allclose(reused_number(SimpleNamespace(target=target, draft=draft))[0], expected, atol=1e-12)


def test_what_noise_that_is_used_twice_leads_to():
    """In 400,000 draws no token's share is off by 5 standard errors but with probability 3e-6; other draws are."""
    target, draft = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.05, 0.65])
    generator = np.random.default_rng(0)
    noise = generator.gumbel(size=(400_000, 4))
    drawn = (np.log(draft) + noise).argmax(-1)
    kept = generator.random(len(drawn)) * draft[drawn] < target[drawn]
    residual = np.log(np.maximum(target - draft, 1e-300))
    expected = reused_noise(SimpleNamespace(target=target[None], draft=draft[None]))[0]
    assert expected.sum() == pytest.approx(1, abs=1e-12)
    for other, right in ((noise, True), (generator.gumbel(size=noise.shape), False)):
        came = np.where(kept, drawn, (residual + other).argmax(-1))
        errors = np.bincount(came, minlength=4) / len(came) - expected
        assert (np.abs(errors) < 5 * np.sqrt(expected * (1 - expected) / len(came))).all() == right


def test_a_mistake_that_shows_a_little_in_each_check_is_found_in_all_of_them(truth):
    """The right engine fails by chance with probability 0.001 at most; seeds are fixed."""
    checks = [Check(f"checks {i}", Sampling(draft="bad", max_tokens=12), prompts=PROMPTS[2:]) for i in range(6)]
    report = conform(NAMED["ReusedNoise"](truth), samples=120, truth=truth, only=checks)
    *single, together = report.findings
    assert all(each.right for each in single)
    assert (together.check.name, together.right) == ("all checks together", False)
    assert together.said.startswith("the noise that drew a rejected token draws the next one")
    assert conform(Reference(truth), samples=120, truth=truth, only=checks)


@pytest.mark.parametrize(
    "name", ["prompts with a shared beginning, good draft", "other samplings in the batch, bad draft"]
)
def test_a_deviation_is_bounded_for_every_prompt_and_sampling(truth, name):
    written = defaultdict(Counter)

    class Noted(Reference):
        def answer(self, queries):
            answers = super().answer(queries)
            for query, answer in zip(queries, answers, strict=True):
                written[query.prompt, query.sampling][answer.token_ids[0]] += 1
            return answers

    [finding] = conform(Noted(truth), samples=100, truth=truth, only=[check_named(name)]).findings
    groups = len(written)
    assert groups == (3 if "prompts" in name else 5)
    firsts = []
    for (prompt, sampling), counts in written.items():
        expected = truth.enumerate(prompt, sampling, 1)
        of = np.array([expected.get((token,), 0.0) for token in range(VOCABULARY)])
        came = np.array([counts[token] for token in range(VOCABULARY)])
        firsts.append(deviation_not_excluded(of, came, FALSE_ALARM / groups / min(3, sampling.max_tokens)))
    assert max(firsts) <= finding.deviation < 1


def test_checks_of_something_else_say_what_they_exclude(truth):
    names = ("independent responses, good draft", "temperature 0, good draft", "a seed repeats, good draft")
    checks = [*map(check_named, names), check_named("log-probabilities, bad draft")]
    said = [each.said for each in conform(Reference(truth), truth=truth, only=checks).findings]
    for found, expected in zip(said, ("begin alike", "any of 36 tokens", "all 20 seeds", "0.02 would be"), strict=True):
        assert expected in found


def test_transformers_keeps_a_grammar(truth):
    """It fails by chance with probability 0.001 at most; seeds are fixed."""
    assert conform(TransformersEngine(), samples=30, truth=truth, only=[check_named("grammar, good draft")])


@pytest.mark.slow
def test_the_fixture_is_found_by_its_entry_point(pytester):
    pytester.makepyfile("""
        from cactus_conform.checks import Check
        from cactus_conform.engine import Sampling
        from cactus_conform.reference import Reference

        ONLY = [Check("temperature 1", Sampling(draft="bad", max_tokens=2))]

        def test_right(conform):
            conform(Reference(), samples=20, only=ONLY)

        def test_wrong(conform):
            conform(lambda prompt, sampling, seed: [1, 1], samples=20, only=ONLY)
    """)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["WRONG  temperature 1 *"])


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
    checks = [check_named("temperature 1, good draft")]
    for threshold, all_of_it in ((0.0, True), (0.4, False)):
        engine = TransformersEngine({"assistant_confidence_threshold": threshold})
        found = conform(engine, samples=100, truth=truth, only=checks).acceptance["good"]
        assert found.too_little(5e-5) is not all_of_it
        assert found.found < found.possible + 4 * found.error


def test_a_wrong_engine_s_report_says_what_its_other_checks_exclude():
    right, wrong = (Check(name, Sampling()) for name in ("top-k, bad draft", "top-p, bad draft"))
    report = ConformanceReport(
        "made", 0.001, [Finding(right, True, 9, deviation=0.2), Finding(wrong, False, 9, said="x")]
    )
    assert "Total variation of one of the first three tokens above 0.20 is excluded by each of 1 checks" in "".join(
        verdict(report)
    )


@pytest.mark.parametrize("name", ["transformers", "llama-cpp"])
def test_engines_forget_a_cancelled_request_and_report_the_target_s_log_probabilities(truth, name):
    engine = open_engine(name)
    for draft in {"bad", "ngram"} & {*engine.drafts}:
        sampling = Sampling(draft=draft, temperature=0.7, stop_token_ids=(7,))
        plain, cancelled = (Query((1, 2, 3), replace(sampling, cancels=each), 5) for each in (False, True))
        answer = engine.one(plain)
        assert answer.token_ids == engine.one(cancelled).token_ids
        assert (answer.accepted is None) is (name == "llama-cpp")
        rows = truth.score((1, 2, 3), [answer.token_ids], sampling)
        expected = np.log(np.take_along_axis(rows.raw_target, rows.tokens[:, None], -1)[:, 0])
        given = answer.logprobs or ()
        np.testing.assert_allclose(given[: len(expected) - 1], expected[: len(given)][: len(expected) - 1], atol=1e-4)
    engine.close()


def test_the_e_value_of_a_right_engine_has_mean_one(truth):
    """An e-value of one response, over all its outcomes: enumerated, not drawn."""
    sampling = Sampling(max_tokens=2, draft="bad")
    outputs, mean = truth.enumerate((1, 2, 3), sampling, 2), 0.0
    for output, probability in outputs.items():
        evidence = Evidence()
        rows = truth.score((1, 2, 3), [output], sampling)
        evidence.add(rows, [("prompt", *output[:place]) for place in range(len(output))])
        mean += probability * math.exp(evidence.found().log_e)
    assert mean == pytest.approx(1, abs=1e-12)


def test_a_callable_is_an_engine_which_may_answer_in_batches(truth):
    inner, asked = Reference(truth), list[int]()

    def one(prompt, sampling, seed):
        return inner.answer([Query(tuple(prompt), sampling, seed)])[0].token_ids

    def several(prompts, samplings, seeds):
        asked.append(len(seeds))
        queries = [Query(tuple(each), *more) for each, *more in zip(prompts, samplings, seeds, strict=True)]
        return [answer.token_ids for answer in inner.answer(queries)]

    several.supports = ("batch",)
    for right in (one, several):
        assert conform(right, samples=40, truth=truth, only=[TWO])
    assert asked == [20, 20]
    wrong = conform(lambda prompt, sampling, seed: [1, 1], samples=40, truth=truth, only=[TWO])
    assert line(wrong.findings[0]).startswith("WRONG")


def test_a_gate_lets_right_engines_pass_and_fails_closed(truth, monkeypatch):
    """The right engine fails by chance with probability 0.001 at most; seeds are fixed."""
    leave = threading.Event()
    passed = gate_verdict(conform(Reference(truth), samples=40, truth=truth, only=[TWO], gate=True))
    assert (passed["verdict"], passed["failure"], passed["responses"]) == ("pass", "", 40)
    assert json.loads(json.dumps(passed)) == passed
    wrong = gate_verdict(conform(lambda *query: [1, 1], samples=40, truth=truth, only=[TWO], gate=True))
    assert (wrong["verdict"], wrong["wrong"][0]["check"]) == ("fail", "temperature 1")
    for engine, said in (
        (lambda *query: 1 / 0, "ZeroDivisionError"),
        (lambda *query: [99], "an answer is one or more"),
    ):
        report = conform(engine, truth=truth, only=[TWO], gate=True)
        assert not report
        assert said in gate_verdict(report)["failure"]
    assert conform(Reference(truth), truth=truth, only=[], gate=True).failure == "there was no check"
    monkeypatch.setattr("cactus_conform.suite.GATE_SECONDS", 0.2)
    report = conform(lambda *query: leave.wait() and [1], truth=truth, only=[TWO], gate=True)
    leave.set()
    assert not report
    assert report.failure == "only 0 checks were answered in 0.2 s"


def test_nonsense_is_no_verdict_and_wrong_numbers_are_refused(truth):
    for answer, said in (
        ([], "one or more tokens"),
        ([99], r"\[0, 10\)"),
        ("no", "failed"),
        (None, "failed: TypeError"),
    ):
        with pytest.raises(EngineError, match=said):
            conform(lambda prompt, sampling, seed, answer=answer: answer, truth=truth)
    for wrong in ({"false_alarm": 0}, {"samples": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            conform(Reference(truth), **wrong)
    with pytest.raises(TypeError, match="engine"):
        conform(3)


def test_greedy_near_ties_are_rounding_and_gaps_are_not(truth, monkeypatch):
    check = Check("temperature 0", Sampling(temperature=0.0, draft="good"), GREEDY)

    class SecondBest(Reference):
        def recovery(self, target, draft, token):
            return target

        def answer(self, queries):
            [first] = super().answer(queries)
            return [EngineAnswer((first.token_ids[0] % 9 + 1, *first.token_ids[1:]))]

    wrong = conform(SecondBest(truth), truth=truth, only=[check]).findings[0]
    assert "no rounding" in wrong.said
    monkeypatch.setattr("cactus_conform.suite._NEAR_TIE", 99.0)
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
    class Untempered(Reference):
        def answer(self, queries):
            answers = super().answer(queries)
            rows = [
                self.truth.score(q.prompt, [a.token_ids], plain(q.sampling))
                for q, a in zip(queries, answers, strict=True)
            ]
            logs = [np.log(np.take_along_axis(r.target, r.tokens[:, None], -1)[:, 0]) for r in rows]
            return [EngineAnswer(a.token_ids, tuple(each.tolist())) for a, each in zip(answers, logs, strict=True)]

    check = Check("log-probabilities", Sampling(temperature=0.7, draft="bad"), LOGPROBS)
    assert conform(Untempered(truth), truth=truth, only=[check])


def test_responses_of_a_batch_are_independent(truth):
    check = Check("independent responses", Sampling(draft="good"), BATCH)
    for name in ("SharedSeeds", "SeedsIgnored"):
        assert "not independent" in conform(NAMED[name](truth), truth=truth, only=[check]).findings[0].said
    assert conform(Reference(truth), truth=truth, only=[check])


def test_the_plug_in_fails_a_test_with_the_report(truth):
    settings = {"samples": 40, "truth": truth, "only": [TWO]}
    check_conforms(Reference(truth), **settings)
    with pytest.raises(pytest.fail.Exception, match=r"WRONG  temperature 1 .*\n.* is WRONG in 1 of 1 checks"):
        check_conforms(lambda prompt, sampling, seed: [1, 1], **settings)


class Coupled:
    """An engine whose seed and place decide each token, with a mistake in either or in what it draws from."""

    supports = ("top_k", "top_p", "coupled")

    def __init__(self, truth, seed=0, place=0, name="target"):
        self._truth, self._seed, self._place, self._name = truth, seed, place, name

    def __call__(self, prompt, sampling, seed):
        output = []
        while len(output) < sampling.max_tokens and not (output and output[-1] in sampling.ends):
            [row] = self._truth.next_rows([Wanted(self._name, (*prompt, *output), len(prompt), sampling)])
            place = len(prompt) + len(output)
            # a mistake of the place begins after the third token, as after a step whose proposals were all kept
            place += self._place if len(output) > 2 else 0
            output.append(expected_token(row, seed + self._seed, place)[0])
        return output


def test_a_coupled_engine_is_compared_token_by_token(truth):
    """A right one passes; others, of which the first two have the right distribution, are found by the first check."""
    assert not [check for check in checks_of(Reference(truth)) if check.kind == COUPLED], "others are not asked"
    assert conform(Coupled(truth), samples=2, truth=truth, seed=5)
    for mistake in ({"seed": 1}, {"place": 1}, {"name": "good"}):
        report = conform(Coupled(truth, **mistake), samples=2, truth=truth, seed=5, first_only=True)
        assert [finding.check.kind for finding in report.findings] == [COUPLED]
        assert "but the seed decides for" in report.findings[0].said


def test_philox_is_that_of_its_authors_and_of_numpy():
    """The words are the published vectors of Random123 and those that NumPy draws."""
    assert philox((2**64 - 1,) * 4, (2**64 - 1,) * 2) == (
        0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0,
    )  # fmt: skip
    for seed, place in ((0, 0), (7, 3), (2**53 - 1, 10**6)):
        numbers = np.random.Generator(np.random.Philox(key=[seed, 0], counter=[0, place, 0, 0])).random(11)
        times = arrival_times(seed, place, 11)
        assert np.allclose(times, -np.log1p(-(numbers + 2.0**-54)), rtol=1e-12, atol=0)
