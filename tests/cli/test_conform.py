"""`cactus conform` is the command of cactus-conform, where that is installed."""

from __future__ import annotations

import json
import sys

import pytest

CACTUS = "cactus_decoding.lab.conformance.engines:CactusEngine"


@pytest.mark.slow
def test_this_package_conforms(run, tmp_path):
    """It fails by chance with probability 0.001 at most; seeds are fixed."""
    file = tmp_path / "found.json"
    code, out, err = run("conform", CACTUS, "--samples", "3", "--output", str(file))
    assert (code, err) == (0, "")
    assert "right  temperature 1, ngram draft" in out
    assert "A right engine is called wrong with probability 0.001 at most" in out
    found = json.loads(file.read_text())
    assert found["report"]["right"]
    assert found["provenance"]["arguments"]["samples"] == 3
    assert all(each["sampling"]["draft"] for each in found["report"]["findings"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give an ENGINE"),
        (("--bad",), "unrecognized arguments: --bad (see 'cactus conform --help')"),
        ((CACTUS, "--set", "rule=nothing"), "nothing"),
    ],
)
def test_mistakes_are_one_line(run, arguments, said):
    code, _, err = run("conform", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert err.startswith("cactus: ")


def test_how_to_install_it_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "cactus_conform.command", None)
    code, out, err = run("conform", "cactus")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "needs cactus-conform: run " in err
    assert err.rstrip().endswith("packages/conform")
