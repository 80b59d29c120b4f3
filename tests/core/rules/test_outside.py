"""Rules from outside the package: by an importable path, and by the entry points of installed packages."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from pathlib import Path

import pytest
import torch
from support.exact_enumeration import enumerate_tokens, paired_rows

from cactus_decoding import Request, audit, parse_rule
from cactus_decoding.core.rules import base as names
from cactus_decoding.core.rules import outside, recorded_rule
from cactus_decoding.core.spelling import importing_nothing
from cactus_decoding.engines.vllm.extra_args import request_of
from cactus_decoding.lab.playground.form import FormLimits, form, read_request

MODULE = """
from dataclasses import dataclass
from typing import Annotated
import torch
from pydantic import Field
from cactus_decoding.core.rules.base import Family, GreedyRule, LiftRule, RowRule, Rule, probability_of
from cactus_decoding.core.types import Verdict

@dataclass(frozen=True)
class MyRule(LiftRule):
    ratio: Annotated[float, Field(ge=0, le=1, description="share of the rest")]
    name = "mine"
    families = (Family("mine", "mine", lambda x: f"mine:ratio={x!r}", 0.1, 1.0),)

    def lift(self, q):
        return q + self.ratio * q * (1 - q)

@dataclass(frozen=True)
class NotANumber(MyRule):
    ratio: float = float("nan")
    def __post_init__(self): pass

@dataclass(frozen=True)
class Raises(Rule):
    def judge(self, target_probs, draft_probs, token_ids):
        raise RuntimeError("out of luck")

@dataclass(frozen=True)
class Short(Rule):
    def judge(self, target_probs, draft_probs, token_ids):
        return Verdict(torch.ones(1), torch.ones(1))

@dataclass(frozen=True)
class Random(Rule):
    def judge(self, target_probs, draft_probs, token_ids):
        return Verdict(torch.rand(token_ids.shape), torch.ones(token_ids.shape))

@dataclass(frozen=True)
class Absurd(Rule):
    def judge(self, target_probs, draft_probs, token_ids):
        q = probability_of(target_probs, token_ids)
        return Verdict(3 * q + 0.01, torch.ones_like(q))

@dataclass(frozen=True)
class Greedy(GreedyRule):
    def keeps(self, target_probs, token_ids):
        return target_probs.gather(-1, token_ids) >= 0

@dataclass(frozen=True)
class Agreed(RowRule):
    def relaxed_target(self, target_probs, draft_probs):
        weights = target_probs * (target_probs + draft_probs)
        return weights / weights.sum(-1, keepdim=True)

@dataclass(frozen=True)
class Half(RowRule):
    def relaxed_target(self, target_probs, draft_probs):
        return target_probs / 2

class Abstract(Rule): ...
class AbstractRow(RowRule): ...
NUMBER = 3
"""
SPELLING = "outside_rules:MyRule,ratio=0.5"
QUESTION = "Finn has 22 nuts. Sam owns 3 times as many nuts as Finn. How many nuts do they have together?"
WRONG = {
    "outside_rules:NotANumber": ["at least 0", "relaxed_prob has nan"],
    "outside_rules:Raises": ["cannot judge", "RuntimeError: out of luck"],
    "outside_rules:Short": ["every token", "[1]"],
    "outside_rules:Random": ["deterministic"],
    "outside_rules:Absurd": ["relaxed_prob of 0 for tokens of target probability 0", "has 0.01"],
    "outside_rules:Abstract": ["without judge"],
    "outside_rules:AbstractRow": ["without relaxed_target"],
    "outside_rules:Half": ["relaxed target that sums to 1", "sums to 0.5"],
    "outside_rules:NUMBER": ["derived from cactus_decoding.Rule", "is 3"],
    "outside_rules:MyRul,ratio=1": ["has no 'MyRul'", "did you mean 'MyRule'?"],
    "outside_rules:MyRule": ["lacks ratio", "'outside_rules:MyRule,ratio=1'"],
    "outside_rules:MyRule,ratio=2": ["ratio must be in [0, 1]"],
    "outside_rools:MyRule": ["ModuleNotFoundError", "'outside_rools'"],
    "cactos:MyRule": ["did you mean 'cactus'?"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "outside_rules.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(outside, "_named", {})
    names.name_of.cache_clear()
    yield tmp_path
    sys.modules.pop("outside_rules", None)


def test_a_path_spells_a_rule_both_ways():
    rule = parse_rule(SPELLING)
    assert str(rule) == SPELLING
    assert parse_rule(str(rule)) == rule == pickle.loads(pickle.dumps(rule))
    assert parse_rule("outside_rules:MyRule:ratio=0.5") == rule  # as the page of the playground spells it
    q, p = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    assert audit(rule, q, p).acceptance > audit("lossless", q, p).acceptance


def test_a_row_is_all_that_a_rule_with_a_row_needs():
    rule = parse_rule("outside_rules:Agreed")
    for target, draft in paired_rows():
        weights = target * (target + draft)
        h = weights / weights.sum(-1, keepdim=True)
        for emitted in (audit(rule, target, draft).output_probs, enumerate_tokens(rule, target, draft)[0]):
            torch.testing.assert_close(emitted, h, rtol=0, atol=1e-12)
        kept = audit(rule, target, draft).acceptance
        torch.testing.assert_close(kept, torch.minimum(h, draft).sum(-1), rtol=0, atol=1e-12)
    Request(rule, verification="block", num_speculative_tokens=4)


@pytest.mark.parametrize("spelling", WRONG)
def test_a_wrong_one_is_one_sentence(spelling):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        parse_rule(spelling)
    for part in WRONG[spelling]:
        assert part in str(error.value)


@pytest.mark.parametrize("spelling", ["outside_rules:Raises", "outside_rules:NUMBER", "no:X"])
@pytest.mark.parametrize("command", [["generate", QUESTION], ["eval", "--output", "r.jsonl"]])
def test_on_the_command_line_it_is_one_line_and_exit_code_2(spelling, command, run):
    code, out, err = run(*command, "--rule", spelling)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert spelling in err


def test_a_rule_for_temperature_0_is_given_rows_that_nothing_is_cut_from():
    assert str(parse_rule("outside_rules:Greedy")) == "outside_rules:Greedy"


def test_who_sends_requests_imports_nothing():
    with pytest.raises(ValueError, match="must be named where the program is started"):
        parse_rule(SPELLING, importing=False)
    body = {"prompt": "Hi", "rules": [SPELLING], "seed": 3}
    with pytest.raises(ValueError, match="must be named"):
        read_request(body, FormLimits(), models=True)
    with pytest.raises(ValueError, match="must be named"):
        request_of({"acceptance_rule": "outside_rules:MyRule,ratio=0.25"})
    with importing_nothing(), pytest.raises(ValueError, match="must be named"):
        Request(SPELLING)
    assert "outside_rules" not in sys.modules
    rule = parse_rule(SPELLING)  # as who starts the server does
    assert read_request(body, FormLimits(), models=True).requests[0].rule == rule
    assert request_of({"acceptance_rule": "outside_rules:MyRule,ratio=0.125"}).rule.ratio == 0.125
    shown = form(FormLimits(), models=False, rules=[rule])["rules"][-1]
    assert (shown["name"], shown["presets"][0]["values"]) == ("outside_rules:MyRule", {"ratio": 0.5})


def test_reading_a_file_imports_nothing():
    rule = recorded_rule(SPELLING)
    assert "outside_rules" not in sys.modules
    assert str(rule) == SPELLING
    with pytest.raises(ValueError, match="does not import"):
        rule.judge(torch.ones(1, 1), None, torch.zeros(1, 1, dtype=torch.long))


def test_an_installed_package_registers_a_name(folder):
    about = folder / "outside_rules-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-rules\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[cactus_decoding.rules]\nmine = outside_rules:MyRule\n")
    importlib.invalidate_caches()
    rule = parse_rule("mine:ratio=0.5", importing=False)  # requests may name it too
    assert str(rule) == "mine:ratio=0.5"
    with pytest.raises(ValueError, match=r"known are .*, mine"):
        parse_rule("nonsense")


@pytest.mark.slow
def test_it_is_measured_like_any_other(run):
    assert run("generate", QUESTION, "--rule", SPELLING, "--seed", "1", "--max-new-tokens", "8")[0] == 0
    code, _, err = run("eval", "--rule", "lossless", "--rule", SPELLING, "--problems", "2", "--output", "r.jsonl")
    assert code == 0, err
    assert [json.loads(line)["cell"]["rule"] for line in Path("r.jsonl").read_text().splitlines()] == [
        "lossless",
        SPELLING,
    ]
    code, _, err = run("frontier", "--output", "f.json", "--positions", "20", "--points", "2",
                       "--family", "outside_rules:MyRule", "--rule", SPELLING)  # fmt: skip
    assert code == 0, err
    points = [point["rule"] for point in json.loads(Path("f.json").read_text())["points"]]
    assert points[2:] == ["outside_rules:MyRule,ratio=0.1", "outside_rules:MyRule,ratio=1.0", SPELLING]
