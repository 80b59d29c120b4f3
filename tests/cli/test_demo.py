"""`cactus demo`: what its sentences, its table and its JSON say, and texts that depend on the seed only."""

from __future__ import annotations

import json
import math
from itertools import islice

import pytest

from cactus_decoding import generate, load_pair
from cactus_decoding.cli.demo import TITLES, configs_of, judged
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.zoo import LOSSLESS, RELAXED
from cactus_decoding.zoo.word_problems import extract_answer, word_problems


def test_it_says_first_how_long_answers_take_and_how_many_are_right(succeed):
    out, err = succeed("demo", "--problems", "2", "--seed", "1")
    lines = out.splitlines()
    assert out.startswith("Question: ")
    assert f"Answer ({RELAXED['rule']}, protecting digits):" in out
    told = [next(line for line in lines if line.startswith(f"{title}: ")) for title in TITLES.values()]
    assert all(" seconds per answer, " in line and " of 2 right." in line for line in told)
    assert "of the time without a draft, with the same distribution of answers." in told[1]
    assert all("of lossless's time. " in line for line in told[2:])
    assert out.index(told[-1]) < out.index("word_problems: 2 problems, bundled with bundled:worded")
    assert "2 problems cannot tell 2 points" in out
    assert "\x1b" not in out + err
    assert "Answering: 8/8" in err
    assert len(lines) <= 40


def test_the_json_says_how_each_run_was_asked_and_every_number_is_that_of_the_responses(run):
    rules = ("--rule", "cactus:delta=1", "--protect", r"\d|=", "--top-p", "0.95")
    done = json.loads(run("demo", "--problems", "2", "--json", *rules)[1])
    problems, pair = list(islice(word_problems("test"), 2)), load_pair()
    relaxed = {"rule": "cactus:delta=1", "num_speculative_tokens": RELAXED["num_speculative_tokens"]}
    ways = {
        "plain": {"num_speculative_tokens": 0},
        "lossless": {"num_speculative_tokens": LOSSLESS["num_speculative_tokens"]},
        "relaxed": relaxed | {"protect": r"\d|="},
        "everywhere": relaxed,
    }
    assert [*done["runs"]] == [*ways]
    assert done["provenance"]["arguments"] == done["arguments"]
    for name, settings in ways.items():
        found = done["runs"][name]
        assert found["cell"]["num_speculative_tokens"] == settings["num_speculative_tokens"]
        assert found["cell"].get("protect") == settings.get("protect")
        answers = [
            generate(pair, each.prompt, **settings, top_p=0.95, seed=seed_of(0, place))
            for place, each in enumerate(problems)
        ]
        steps = sum(each.metrics.steps for each in answers)
        assert found["metrics"]["acceptance_length"]["value"] == pytest.approx(
            1 + sum(each.metrics.accepted for each in answers) / steps
        )
        right = sum(extract_answer(each.text) == one.answer for each, one in zip(answers, problems, strict=True))
        assert found["metrics"]["score"]["value"] == right / 2


def test_what_is_compared():
    assert [*configs_of(dict(RELAXED), 3, 0)] == ["plain", "lossless", "relaxed", "everywhere"]
    configs = configs_of({"rule": "relaxed_greedy:margin=1", "temperature": 0.0}, 3, 5)
    assert [*configs] == ["plain", "lossless", "relaxed"]  # nothing is protected
    assert {config.request.seed for config in configs.values()} == {5}
    assert [config.rule for config in configs.values()] == ["lossless", "lossless", "relaxed_greedy:margin=1.0"]


def test_what_chance_explains_is_not_called_a_loss_and_time_is_judged_by_its_interval():
    faster, slower, unsure = Interval(0.9, 0.8, 0.95), Interval(1.2, 1.1, 1.3), Interval(1.0, 0.9, 1.1)
    few, same, worse = Interval(0.5, math.nan, math.nan), Interval(-0.1, -0.2, 0.0), Interval(-0.3, -0.4, -0.1)
    assert judged(faster, worse) == "It is faster, but it loses right answers, more than chance explains."
    for time, said in (
        (faster, "It is faster"),
        (slower, "It is no faster on this machine"),
        (unsure, "This run cannot tell"),
        (few, "This run cannot tell"),
    ):
        assert judged(time, same).startswith(said)
        assert judged(time, same).endswith("with no loss that this run can see.")
