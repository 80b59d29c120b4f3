"""All rules on the same rows: the tables of docs/studies/tables/frontier.md, and the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripts import ROOT

from cactus_decoding.core.rules import parse_rule
from cactus_decoding.core.rules.family import Family
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from studies.rules.frontier import (
    INDEX,
    PAGE,
    PICTURE,
    RESULTS,
    beside_each_other,
    drawn,
    greedy_beside_each_other,
    render,
    strictest,
)


def test_the_strictest_rule_that_accepts_enough_is_found() -> None:
    assert strictest(FAMILIES["clamped"], lambda rule: parse_rule(rule).width, 1.5).startswith("clamped:width=1.50")
    assert strictest(FAMILIES["top_k"], lambda rule: parse_rule(rule).k, 4) == "top_k:k=4"
    assert strictest(FAMILIES["ensemble"], lambda rule: parse_rule(rule).weight, 2.0) is None
    steps = Family("steps", "steps", lambda x: f"clamped:width={x!r}", 0.01, 10.0)
    assert parse_rule(strictest(steps, lambda rule: float(parse_rule(rule).width >= 1), 0.5)).width >= 1


@pytest.mark.slow
def test_tables_and_picture_are_rendered_from_the_result_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    results = {kind: json.loads(path.read_text()) for kind, path in RESULTS.items()}
    for kind, result in results.items():
        render(result, page, kind)
    assert page.read_text() == PAGE.read_text()
    assert drawn(*(result["table"] for result in results.values())) == PICTURE.read_text()
    assert beside_each_other(results.values()) in INDEX.read_text()
    assert greedy_beside_each_other(results[""]) in INDEX.read_text()


LATER = {"real_frontier": {"ears"}}
"""Families that came after a pair's rows had been recorded."""


@pytest.mark.parametrize("path", RESULTS.values(), ids=lambda path: path.stem)
def test_every_family_stands_in_the_table_and_none_costs_less_than_the_clamped_ratio(path: Path) -> None:
    result = json.loads(path.read_text())
    assert {row["family"] for row in result["table"]} == set(FAMILIES) - LATER.get(path.stem, set())
    for row in result["table"]:
        assert row["kl"] >= row["clamped"]["kl"] * 0.99, row["rule"]  # it is the optimum; its knob is rounded
    assert result["provenance"]["arguments"]["study"] == "rules.frontier"
    assert path.is_relative_to(ROOT / "studies")
