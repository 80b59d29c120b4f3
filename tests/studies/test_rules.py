"""The study that regenerates docs/studies/rules.md."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.result_files import made, several
from support.scripts import ROOT, assert_rendered, copied_page, run_script

from cactus_decoding.lab.evaluation.runs.summary import summarise
from studies.pages import tables_of
from studies.rules import fly_kernels, papers
from studies.rules.page import sigma_band

PAGE, RESULTS = ROOT / "docs" / "studies" / "rules.md", ROOT / "studies" / "rules" / "results"


run = partial(run_script, "studies.rules.run")


@pytest.mark.slow
def test_the_study_on_the_page_is_rendered_from_its_result_files(tmp_path: Path) -> None:
    assert_rendered("studies.rules.run", PAGE, tmp_path, folder=RESULTS)


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables_and_pictures(tmp_path: Path) -> None:
    page, folder = copied_page(PAGE, tmp_path), tmp_path / "study"
    given = ("--problems", 1, "--positions", 40, "--page", page, "--folder", folder)
    first = run(*given)
    assert first.returncode == 0, first.stderr
    assert "clamped:width=" in tables_of(page).read_text()
    assert sorted(path.suffix for path in folder.iterdir()) == [".gz"] * 2 + [".json"] * 2
    assert len(list((tmp_path / "pictures" / "rules").glob("*.svg"))) == 6
    before = (folder / "plain.jsonl.gz").read_bytes()
    assert run(*given).returncode == 0
    assert (folder / "plain.jsonl.gz").read_bytes() == before, "nothing is answered twice"


def test_the_band_is_one_standard_error_of_the_target_alone():
    rows = summarise(several())
    band = sigma_band(rows)
    share = rows[0].metrics["score"].value
    sigma = math.sqrt(share * (1 - share) / 60)
    assert (band.value, band.low, band.high) == pytest.approx((share, share - sigma, share + sigma), abs=0.02)
    (alone,) = summarise([made("lossless", 0, problems=12, right=1.1)])
    assert sigma_band([alone]).low == pytest.approx(0.158655 ** (1 / 12), abs=1e-9)  # not of width zero
    assert sigma_band(rows[1:]) is None


@pytest.mark.parametrize("study", [papers, fly_kernels], ids=lambda study: study.__name__)
def test_what_deployed_rules_bring_is_rendered_from_the_result_files(study: Any, tmp_path: Path) -> None:
    page, result = tmp_path / "page.md", json.loads(study.RESULTS.read_text())
    page.write_text(study.PAGE.read_text())
    study.render(result, page)
    assert page.read_text() == study.PAGE.read_text()
    assert not result["provenance"]["commit"].endswith("-dirty")


def test_vllm_s_kernels_keep_what_fly_keeps() -> None:
    ways = json.loads(fly_kernels.RESULTS.read_text())["ways"].values()
    assert all(way["same"] == way["steps"] > way["more than losslessly"] > 0 for way in ways)


def test_a_ratio_of_sums_has_the_interval_of_its_problems() -> None:
    counts = np.array([[6.0, 2.0, 3.0, 1.0]] * 20)
    assert papers.quotient(counts, (0,), (1,)).value == 3.0
    assert papers.quotient(counts, (0, 3), (1, 2)).value == 1.0
    assert not papers.quotient(counts, (0,), (1,)).has_ends  # all alike
    counts[:10, 0] = 2.0
    value, low, high = papers.quotient(counts, (0,), (1,))
    assert low < value == 2.0 < high
