"""What a pair must reach to be bundled."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import pytest
import torch

from cactus_decoding import Metrics, load_pair, zoo
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.zoo.word_problems import word_problems
from factory.check_bundled import (
    Disagreement,
    PairScores,
    check_bundled,
    check_floors,
    check_wording,
    disagreement,
    evaluate_pair,
)
from factory.command import main
from factory.train_bundled import train_bundled


def test_floors():
    metrics = Metrics(steps=10, drafted=60, accepted=30)
    good = PairScores(Score(90, 100), Score(65, 100), Score(90, 100, metrics))
    assert all(floor.met for floor in check_floors(good))
    for bad in (
        replace(good, target=Score(89, 100), draft=Score(10, 100)),
        replace(good, draft=Score(66, 100)),
        replace(good, lossless=Score(90, 100, Metrics(steps=10, drafted=60, accepted=14))),
        replace(good, lossless=Score(90, 100, Metrics(steps=10, drafted=60, accepted=41))),
    ):
        assert sum(not floor.met for floor in check_floors(bad)) == 1
    with pytest.raises(ValueError, match="problems must not be empty"):
        evaluate_pair(load_pair(), load_pair(), [])


def test_floors_of_a_draft_that_disagrees_about_words(tmp_path):
    def scored(accepted):
        return Score(90, 100, Metrics(steps=100, drafted=2000, accepted=accepted))

    good = Disagreement(scored(450), 100, 25, scored(800), scored(1080))
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert all(floor.met for floor in check_wording(good, tmp_path))
    for bad in (
        replace(good, at_digits=36),
        replace(good, relaxed=scored(990)),
        replace(good, relaxed=scored(1250)),
        replace(good, lossless=scored(0)),
    ):
        assert [floor.met for floor in check_wording(bad, tmp_path)].count(False) == 1
    with (tmp_path / "model-2.safetensors").open("wb") as file:
        file.truncate(4_000_000)
    assert [floor.met for floor in check_wording(good, tmp_path)] == [True, True, False]
    with pytest.raises(ValueError, match="problems must not be empty"):
        disagreement(load_pair(), [])


def test_a_draft_that_is_its_target_disagrees_about_nothing():
    found = disagreement(load_pair(draft=zoo.path("target")), list(islice(word_problems("validation"), 3)))
    assert (found.rejections, found.digit_share) == (0, 0.0)
    assert found.untruncated.answers == found.lossless.answers == found.relaxed.answers == 3


def test_check_bundled_writes_a_result_and_fails_where_a_floor_is_missed(capsys, settings_of_the_libraries, tmp_path):
    for role in zoo.ROLES:  # a draft as good as its target misses the second floor
        (tmp_path / role).symlink_to(zoo.path("draft"))
    file = tmp_path / "check.json"
    given = ["--models", str(tmp_path), "--problems", "2", "--json", str(file)]
    assert main(check_bundled, arguments=given) == 1
    assert "missed" in capsys.readouterr().out
    result = json.loads(file.read_text())
    assert {floor["name"] for floor in result["floors"] if not floor["met"]} >= {"target − draft accuracy"}
    assert result["scores"]["target"]["right"] == result["scores"]["draft"]["right"]
    assert set(result["pass_ratios"]) == {"worded", "draft"}
    assert result["worded"]["untruncated"]["answers"] == 2
    assert result["provenance"]["arguments"]["problems"] == 2
    assert result["provenance"]["versions"]["torch"] == torch.__version__


TRAIN = ("--output", "new")


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (train_bundled, (), "--output is missing"),
        (train_bundled, ("--output", str(zoo.path("target").parent)), "exists; choose another output, or allow"),
        (train_bundled, (*TRAIN, "--work", "/dev/null"), "'/dev/null' is no folder"),
        (train_bundled, ("--output", "nowhere"), "cannot write to 'nowhere'"),
        (check_bundled, ("--models", "/missing"), "there is no folder '/missing/target'"),
        (check_bundled, ("--json", "/missing/result.json"), "cannot write '/missing/result.json': its folder is"),
        (check_bundled, ("--num-speculative-tokens", "0"), "num_speculative_tokens must be at least 1, but is 0"),
    ],
)
@pytest.mark.usefixtures("settings_of_the_libraries")
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, command, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").touch()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("missing/x")
    before = sorted(tmp_path.iterdir())
    code = main(command, arguments=arguments)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("cactus: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
