"""The study that regenerates docs/studies/tables/rules.md."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.result_files import made, several
from support.scripts import ROOT

from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.rules.base import Family
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from scripts.pages import insert
from scripts.results import read
from studies.rules import papers
from studies.rules.frontier import GREEDY_SHARES, PICTURE, RESULTS, pages, strictest, with_plain
from studies.rules.run import sigma_band


def test_the_band_is_one_standard_error_of_the_target_alone():
    rows = summarise(several())
    band = sigma_band(rows)
    share = rows[0].metrics["score"].value
    sigma = math.sqrt(share * (1 - share) / 60)
    assert (band.value, band.low, band.high) == pytest.approx((share, share - sigma, share + sigma), abs=0.02)
    (alone,) = summarise([made("lossless", 0, problems=12, right=1.1)])
    assert sigma_band([alone]).low == pytest.approx(0.158655 ** (1 / 12), abs=1e-9)  # not of width zero
    assert sigma_band(rows[1:]) is None


def test_a_ratio_of_sums_has_the_interval_of_its_problems() -> None:
    counts = np.array([[6.0, 2.0, 3.0, 1.0]] * 20)
    assert papers.quotient(counts, (0,), (1,)).value == 3.0
    assert papers.quotient(counts, (0, 3), (1, 2)).value == 1.0
    assert not papers.quotient(counts, (0,), (1,)).has_ends  # all alike
    counts[:10, 0] = 2.0
    value, low, high = papers.quotient(counts, (0,), (1,))
    assert low < value == 2.0 < high


def test_the_strictest_rule_that_accepts_enough_is_found() -> None:
    assert strictest(FAMILIES["clamped"], lambda rule: parse_rule(rule).width, 1.5).startswith("clamped:width=1.50")
    assert strictest(FAMILIES["top_k"], lambda rule: parse_rule(rule).k, 4) == "top_k:k=4"
    assert strictest(FAMILIES["ensemble"], lambda rule: parse_rule(rule).weight, 2.0) is None
    steps = Family("steps", "steps", lambda x: f"clamped:width={x!r}", 0.01, 10.0)
    assert parse_rule(strictest(steps, lambda rule: float(parse_rule(rule).width >= 1), 0.5)).width >= 1


@pytest.mark.slow
def test_tables_and_picture_are_rendered_from_the_result_files() -> None:
    for page, shown in pages().items():
        text = page.read_text()
        for name, told in shown.items():
            assert told == (page.parent / name).read_text() if name == PICTURE else text == insert(text, name, told)


@pytest.mark.parametrize("path", RESULTS.values(), ids=lambda path: path.stem)
def test_every_family_stands_in_the_table_and_none_costs_less_than_the_clamped_ratio(path: Path) -> None:
    result = read(path)
    assert {row["family"] for row in result["table"]} == set(FAMILIES)
    for row in result["table"]:
        assert row["kl"] >= row["clamped"]["kl"] * 0.99, row["rule"]  # it is the optimum; its knob is rounded
    assert result["provenance"]["arguments"]["study"] == "rules.frontier"
    assert path.is_relative_to(ROOT / "studies")


@pytest.mark.parametrize("path", RESULTS.values(), ids=lambda path: path.stem)
def test_plain_greedy_decoding_keeps_what_every_share_is_counted_from(path: Path) -> None:
    plain, *rules = with_plain(read(path)["greedy"])
    assert plain["rule"] == "lossless"
    strict = plain["acceptance"]
    wanted = {strict + share * (1 - strict) for share in GREEDY_SHARES}
    assert all(any(row["wanted"] == pytest.approx(each, abs=1e-12) for each in wanted) for row in rules)
    assert all(strict < row["acceptance"] for row in rules)
