"""`cactus conform` from end to end."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_this_package_conforms(run, tmp_path):
    """It fails by chance with probability 0.001 at most; seeds are fixed."""
    file = tmp_path / "found.json"
    code, out, err = run("conform", "cactus", "--samples", "3", "--output", str(file))
    assert (code, err) == (0, "")
    assert "right  temperature 1, ngram draft" in out
    assert "A right engine is called wrong with probability 0.001 at most" in out
    found = json.loads(file.read_text())
    assert found["report"]["right"]
    assert found["provenance"]["arguments"]["samples"] == 3
    assert all(each["sampling"]["draft"] for each in found["report"]["findings"])


@pytest.mark.slow
def test_a_relaxed_rule_is_called_wrong(run, tmp_path):
    code, out, _ = run("conform", "cactus", "--set", "rule=cactus:delta=1", "--samples", "40")
    assert code == 1
    assert "is WRONG in" in out
    assert "most evidence for" in out


def test_models_are_written(run, tmp_path):
    code, out, _ = run("conform", "--models", str(tmp_path / "tiny"))
    assert code == 0
    assert str(tmp_path / "tiny") in out
    assert {each.name for each in (tmp_path / "tiny").iterdir()} >= {"target", "bad", "target.gguf", "bad.gguf"}


@pytest.mark.parametrize("mine", ["good/model.safetensors", "bad.gguf"])
def test_models_of_others_are_not_overwritten(run, tmp_path: Path, mine: str) -> None:
    file = tmp_path / mine
    file.parent.mkdir(exist_ok=True)
    file.write_text("weights")
    code, _, error = run("conform", "--models", str(tmp_path))
    assert (code, file.read_text()) == (2, "weights")
    assert f"but {mine.partition('/')[0].partition('.')[0]} is something else there" in error
    assert not (tmp_path / "target").exists()
    file.unlink()
    if file.parent != tmp_path:
        file.parent.rmdir()
    assert [run("conform", "--models", str(tmp_path))[0] for _ in range(2)] == [0, 0]  # their own are


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give an ENGINE"),
        (("cactsu",), "did you mean 'cactus'"),
        (("nowhere:engine",), "cannot be imported"),
        (("cactus", "--set", "rule"), "NAME=VALUE"),
        (("cactus", "--set", "rule=nothing"), "nothing"),
        (("cactus", "--false-alarm", "0"), "false_alarm"),
        (("--against", "http://127.0.0.1:1"), "ENGINE"),
        (("json:dumps", "--set", "a=1"), "no settings"),
    ],
)
def test_mistakes_are_one_line(run, arguments, said):
    code, _, err = run("conform", *arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_an_engine_that_fails_is_one_line(run):
    code, _, err = run("conform", "json:dumps")
    assert (code, err.count("\n")) == (2, 1)
    assert "failed" in err


def test_an_engine_that_is_half_installed_is_one_line_and_not_wrong(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, _, err = run("conform", "transformers")
    assert (code, err.count("\n")) == (2, 1)
    assert "engine 'transformers' cannot be imported" in err
