"""Recommendations: the best knob within a limit, exactly; and lossless wherever that is the better answer."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.recorded_rows import agreeable_rows, enumerated, some_rows
from support.result_files import made, several, write

from cactus_decoding import SamplingParams, load_pair, parse_rule
from cactus_decoding.evaluation.frontier.calibrate import loosest_within, speeds, verdict
from cactus_decoding.evaluation.frontier.calibrate_score import advise
from cactus_decoding.evaluation.frontier.families import FAMILIES
from cactus_decoding.evaluation.frontier.frontier import Frontier
from cactus_decoding.evaluation.frontier.step_times import time_steps
from cactus_decoding.evaluation.runs.summary import summarise
from cactus_decoding.zoo.word_problems import word_problems

LENGTHS = (0, 1, 2, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("limit", [0.003, 0.05, 0.5])
def test_the_best_knob_is_within_the_limit_and_no_knob_of_a_fine_grid_is_better(name, limit):
    measured, family = Frontier(some_rows()), FAMILIES[name]
    found = loosest_within(measured, family, limit)
    others = [measured.measure(family.spell(knob)) for knob in family.knobs(40)]
    within = [point.acceptance.value for point in others if point.kl.value <= limit]
    if found is None:
        # only a family that is dear at both ends, or whose knob is coarse, may fit in between the scanned knobs
        assert not within
        return
    assert found.kl.value <= limit
    assert enumerated(parse_rule(found.rule), some_rows())["kl"] == pytest.approx(found.kl.value, abs=1e-10)
    assert found.acceptance.value >= max(within, default=0) - 2e-3


def test_a_looser_clamp_than_the_recommended_one_overspends():
    measured = Frontier(some_rows())
    found = loosest_within(measured, FAMILIES["clamped"], 0.02)
    assert measured.measure(f"clamped:width={found.knob * 1.002!r}").kl.value > 0.02


def constant(seconds: dict[str, list[float]], rounds: int = 5) -> dict:
    """Return step times without any noise, for each rule at each length."""
    return {
        (rule, length): np.full(rounds, values[place])
        for rule, values in seconds.items()
        for place, length in enumerate(LENGTHS)
    }


RULE = "clamped:width=3.0"


def test_time_per_token_is_step_time_over_expected_tokens():
    measured = Frontier(some_rows())
    times = constant({"lossless": [1.0, 1.1, 1.2, 1.3, 1.4], RULE: [1.0, 1.1, 1.2, 1.3, 1.4]})
    compared = speeds(measured, RULE, times, current=2)
    for rule, speed in (("lossless", compared.lossless), (RULE, compared.rule)):
        tokens = [1.0, *(each.value for each in measured.measure(rule).tokens_per_step)]
        expected = [(1 + length / 10) / tokens[length] for length in LENGTHS]
        assert [each.value for each in speed.seconds] == pytest.approx(expected)
        assert speed.best_length == LENGTHS[int(np.argmin(expected))]
        assert all(each.low <= each.value <= each.high for each in speed.seconds)
    best = [min(each.value for each in speed.seconds) for speed in (compared.lossless, compared.rule)]
    assert compared.gain.value == pytest.approx(best[0] / best[1])
    assert compared.gain_of_length.value >= 1
    assert compared.gain_at_current.value == pytest.approx(
        compared.lossless.seconds[2].value / compared.rule.seconds[2].value
    )


def verdict_of(times: dict, current: int = 4, limit: float = 1.0) -> str:
    measured = Frontier(agreeable_rows())
    lossless, chosen = measured.measure("lossless"), measured.measure(RULE)
    return verdict(chosen, lossless, limit, speeds(measured, RULE, times, current), current)


def test_the_verdict_says_what_is_faster():
    cheap = [1.0, 1.01, 1.02, 1.03, 1.04]
    assert verdict_of(constant({"lossless": cheap, RULE: cheap})).startswith(
        f"{RULE} with 4 proposals per step: estimated 1."
    )
    dear = [10 * x for x in cheap]
    text = verdict_of(constant({"lossless": cheap, RULE: [1.0, *dear[1:]]}))
    assert text.startswith(f"Lossless with 4 proposals per step, its best length: {RULE}, the best rule within the")
    assert text.endswith("as fast, so it is slower.")
    noisy = constant({"lossless": cheap, RULE: cheap}, rounds=6)
    noisy = {key: values * np.array([1.0, 1.5, 0.7, 1.2, 0.8, 1.1])[:: 1 if key[0] == RULE else -1]
             for key, values in noisy.items()}  # fmt: skip
    assert "which chance may explain" in verdict_of(noisy)


def test_the_verdict_says_when_a_longer_or_a_shorter_draft_is_the_better_answer():
    cheap, steep = [1.0, 1.01, 1.02, 1.03, 1.04], [1.0, 2.0, 3.0, 4.0, 5.0]
    slow = [1.0, 20.0, 20.0, 20.0, 20.0]
    text = verdict_of(constant({"lossless": cheap, RULE: slow}), current=1)
    assert "A longer draft alone makes lossless" in text
    assert "with the 1 proposals in use now" in text
    text = verdict_of(constant({"lossless": steep, RULE: slow}), current=4)
    assert text.startswith("Lossless with no proposals, the target alone")
    assert "A shorter draft alone makes lossless" in text


def test_the_verdict_is_lossless_where_nothing_fits():
    measured = Frontier(some_rows())
    lossless = measured.measure("lossless")
    assert loosest_within(measured, FAMILIES["top_k"], 1e-9) is None
    expected = "Lossless: no rule accepts more than lossless within 1e-09 nats per position."
    assert verdict(None, lossless, 1e-9, None, 6) == expected
    assert verdict(lossless, lossless, 1e-9, None, 6) == expected


def test_steps_are_timed_side_by_side():
    pair = load_pair()
    prompts = [problem.prompt for problem, _ in zip(word_problems("validation", seed=0), range(3), strict=False)]
    settings = [("lossless", 0), ("lossless", 3), ("cactus:delta=1.0", 3)]
    times = time_steps(pair, prompts, settings, sampling=SamplingParams(), steps=4)
    assert list(times) == settings
    assert all(values.shape == (3,) and bool((values > 0).all()) for values in times.values())


# --- by score ---


def rows_of(results):
    return summarise(results)


def test_the_fastest_rule_whose_score_holds_is_chosen():
    (advice,) = advise(rows_of(several()), "sums", 0.05)
    assert advice.baseline.cell.num_speculative_tokens == 4
    assert advice.chosen.cell.rule == "clamped:width=1.0"
    assert [row.cell.rule for row in advice.candidates][:2] == ["cactus:delta=1.0"] * 2  # faster, but wrong
    assert advice.faster
    assert advice.verdict.startswith("clamped:width=1.0 ×4: 0.900 times the wall time per answer (95 %: ")
    assert "score +0.000 (95 %: +0.000 to +0.000)" in advice.verdict
    assert "the fastest of 2 settings within the limit: confirm it on fresh problems" in advice.verdict


def test_lossless_is_chosen_where_no_rule_is_faster_or_none_holds():
    slower = [r for r in several() if r.cell.rule in ("lossless", "clamped:width=0.1")]
    (advice,) = advise(rows_of(slower), "sums", 0.05)
    assert not advice.faster
    assert advice.verdict.startswith("Lossless with 4 proposals per step, its best length: clamped:width=0.1 ×4, the")
    assert advice.verdict.endswith(": slower.")
    worse = [r for r in several() if r.cell.rule in ("lossless", "cactus:delta=1.0")]
    (advice,) = advise(rows_of(worse), "sums", 0.05)
    assert advice.chosen is None
    assert "no setting of another rule is known to lose at most 0.05" in advice.verdict
    (advice,) = advise(rows_of([r for r in several() if r.cell.rule == "lossless"]), "sums", 0.05)
    assert advice.verdict.endswith("no other rule was measured.")
    alone = [r for r in several() if r.cell.num_speculative_tokens] + [made("lossless", 0, seconds=0.1)]
    (advice,) = advise(rows_of(alone), "sums", 0.05)
    assert advice.verdict.endswith("The target alone is faster than all of them on this machine.")


def test_each_pair_gets_its_own_advice():
    both = several() + several(draft="ngram")
    assert [advice.cell.draft for advice in advise(rows_of(both), "sums", 0.05)] == ["small", "ngram"]


def test_advice_without_what_it_needs_is_refused():
    with pytest.raises(ValueError, match="there is no result of task 'riddles'; there are: sums"):
        advise(rows_of(several()), "riddles", 0.05)
    with pytest.raises(ValueError, match="has no score"):
        advise(rows_of([made("lossless", 4, scored=False)]), "sums", 0.05)
    with pytest.raises(ValueError, match="has no lossless cell to compare with"):
        advise(rows_of([made("cactus:delta=1.0", 4)]), "sums", 0.05)


# --- command ---


def test_the_command_recommends_by_score(run, tmp_path):
    results, output = write(tmp_path / "results.jsonl", several()), tmp_path / "advice.json"
    command = ["calibrate", "--max-score-drop", "0.05", "--results", str(results), "--task", "sums"]
    code, out, err = run(*command, "--output", str(output))
    assert code == 0, err
    assert "Recommended (sums, large with small, temperature 1): clamped:width=1.0 ×4" in out
    kept = json.loads(output.read_text())
    assert kept["advice"][0]["chosen"]["cell"]["rule"] == "clamped:width=1.0"
    assert kept["advice"][0]["settings_measured"] == 4
    assert "commit" in kept["provenance"]


@pytest.mark.slow
def test_the_command_recommends_by_nats(run, tmp_path):
    rows, output = tmp_path / "f.safetensors", tmp_path / "advice.json"
    code, _, err = run("frontier", "--output", str(tmp_path / "f.json"), "--rows", str(rows), "--positions", "80",
                       "--family", "clamped", "--points", "2", "--num-speculative-tokens", "4")  # fmt: skip
    assert code == 0, err
    command = ["calibrate", "--max-nats", "0.05", "--rows", str(rows), "--family", "clamped", "--family", "ensemble"]
    code, out, err = run(*command, "--num-speculative-tokens", "4", "--rounds", "2", "--output", str(output))
    assert code == 0, err
    assert "Recommended: " in out
    kept = json.loads(output.read_text())
    assert kept["best_within_limit"].startswith("clamped:width=")
    assert kept["candidates"][1]["kl"][0] <= 0.05
    lengths = [row["num_speculative_tokens"] for row in kept["speed"]["lossless"]["lengths"]]
    assert lengths == [0, 1, 2, 3, 4]
    code, _, err = run(*command, "--num-speculative-tokens", "9")
    assert code == 2
    assert "--num-speculative-tokens must be at most 4" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either --max-nats (with --rows) or --max-score-drop (with --results)"),
        (["--max-nats", "1", "--max-score-drop", "0.1"], "give either --max-nats"),
        (["--max-nats", "1"], "--max-nats needs --rows"),
        (["--max-nats", "-1"], "'--max-nats'"),
        (["--max-score-drop", "0.1"], "--max-score-drop needs --results"),
        (["--max-nats", "1", "--rows", "missing.safetensors"], "missing.safetensors: there is no such file"),
        (["--max-score-drop", "0.1", "--results", "missing.jsonl"], "missing.jsonl: No such file"),
        (["--max-score-drop", "0.1", "--results", "bad.jsonl"], "bad.jsonl, line 1: this is not"),
        (["--max-nats", "1", "--output", "/missing/a.json"], "cannot write '/missing/a.json'"),
    ],
)
def test_mistakes_are_one_sentence(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text("{}\n")
    code, out, err = run("calibrate", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_seeds_are_gathered_before_advice():
    more = [replace(result, cell=replace(result.cell, seed=1)) for result in several()]
    (advice,) = advise(rows_of(several() + more), "sums", 0.05)
    assert advice.chosen.seeds == [0, 1]


def test_chances_are_those_that_the_tokens_come_from():
    measured = Frontier(some_rows())
    chances = measured.chances("lossless")
    tokens = measured.tokens(chances).sum(0) / measured.steps.sum()
    assert torch.equal(tokens, torch.tensor([each.value for each in measured.measure("lossless").tokens_per_step],
                                            dtype=torch.float64))  # fmt: skip
