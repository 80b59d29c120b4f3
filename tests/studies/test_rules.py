"""The study that regenerates docs/studies/rules.md."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import pytest
from support.result_files import made, several
from support.scripts import ROOT, assert_rendered, copied_page, run_script

from cactus_decoding.evaluation.runs.summary import summarise
from studies.pages import tables_of
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
