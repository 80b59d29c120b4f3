"""The study that measures learned importance beside protected digits."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from support.importances import digits_file
from support.scripts import ROOT, assert_rendered, run_script

from cactus_decoding import load_pair
from cactus_decoding.core.policy.vocabulary import Vocabulary

PAGE = ROOT / "docs/studies/tables/importance.md"


run = partial(run_script, "studies.importance.run")


def test_the_page_is_rendered_from_its_result_file(tmp_path: Path) -> None:
    assert_rendered("studies.importance.run", PAGE, tmp_path)


@pytest.mark.slow
def test_it_matches_the_limits_and_compares_on_the_same_problems(tmp_path: Path) -> None:
    pair = load_pair()
    file = digits_file(tmp_path, Vocabulary.of(pair.tokenizer, pair.target.model.config.vocab_size))
    page, out, results = tmp_path / "page.md", tmp_path / "out.json", tmp_path / "results.jsonl"
    shutil.copy(PAGE, page)
    given = ("--importance", file, "--problems", 2, "--matching", 3, "--results", results, "--out", out)
    done = run(*given, "--page", page)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["limits"].keys() == {"clamped:width=3", "cactus:delta=1"}
    assert len(found["settings"]) == len(results.read_text().splitlines()) == 11
    # the nineteen digits of the vocabulary lead; every other token weighs nothing
    assert found["found"]["numbers_and_operators_among_top_20_of_target"] == 0.95
    assert found["settings"]["cactus:delta=1 scaled"]["setting"]["importance_scale"] is True
    assert "importance ≤ 0.2" in page.read_text()
    rendered = page.read_text()
    assert run("--only-render", "--out", out, "--page", page).returncode == 0
    assert page.read_text() == rendered


@pytest.mark.parametrize(
    ("study", "page"),
    [("ensemble", PAGE), ("recurring", ROOT / "docs/recurring.md")],
)
def test_pages_of_the_other_studies_are_rendered_from_their_result_files(
    study: str, page: Path, tmp_path: Path
) -> None:
    assert_rendered(f"studies.importance.{study}", page, tmp_path)


@pytest.mark.slow
def test_no_weight_of_an_ensemble_costs_less_than_the_clamped_ratio(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    shutil.copy(PAGE, page)
    done = run_script("studies.importance.ensemble", "--problems", 12, "--out", out, "--page", page)
    assert done.returncode == 0, done.stderr
    for pair in json.loads(out.read_text())["pairs"]:
        rows = {row["way"]: row for row in pair["rows"]}
        clamped, best, one = (rows[way]["kl"] for way in (
            "clamped ratio", "ensemble, cheapest weights", "ensemble, one weight"))  # fmt: skip
        assert clamped < best < one
        assert all(
            row["acceptance"] == pytest.approx(rows["clamped ratio"]["acceptance"], abs=1e-3) for row in rows.values()
        )


@pytest.mark.slow
def test_a_memory_keeps_a_part_of_what_a_rule_gains(tmp_path: Path) -> None:
    page, out, results = tmp_path / "page.md", tmp_path / "out.json", tmp_path / "results.jsonl"
    shutil.copy(ROOT / "docs/recurring.md", page)
    given = ("--problems", 4, "--results", results, "--out", out, "--page", page)
    done = run_script("studies.importance.recurring", *given)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["settings"]
    assert len(found) == len(results.read_text().splitlines()) == 8
    assert found["0, relaxed_greedy:margin=1.2 after 1 like rejections"]["setting"]["recurring"] == 1
