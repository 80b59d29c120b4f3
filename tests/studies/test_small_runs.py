"""Every study runs to its tables: with a problem or two, and where it can be, to the same end after an interruption."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.scripts import ROOT, copied_page, run_script

from scripts.pages import tables_of
from scripts.results import read
from studies.budgets import run as budgets
from studies.constraints import run as constraints
from studies.trees import schemes

PAGES = ROOT / "docs" / "studies"
TABLES = PAGES / "tables"
pytestmark = pytest.mark.slow


def ran(study: str, *given: object) -> None:
    done = run_script(f"studies.{study}", *given)
    assert done.returncode == 0, done.stderr


def copied_table(name: str, work: Path) -> Path:
    """Copy a page of tables, whose pictures are beside its folder."""
    (work / "tables").mkdir()
    return copied_page(TABLES / name, work / "tables")


def test_rules(tmp_path: Path) -> None:
    page, folder = copied_table("rules.md", tmp_path), tmp_path / "study"
    ran("rules.run", "--problems", 1, "--positions", 40, "--page", page, "--folder", folder)
    assert "clamped:width=" in page.read_text()
    assert [path.suffix for path in folder.iterdir()] == [".gz"] * 4
    assert len(list((tmp_path / "pictures" / "rules").glob("*.svg"))) == 3


def test_relaxing(tmp_path: Path) -> None:
    page, folder = copied_table("relaxing.md", tmp_path), tmp_path / "relaxing"
    ran("relaxing.run", "--problems", 1, "--sampling", "truncated", "--page", page, "--folder", folder)
    parts = {"chosen", "tuned", "paper", "grid"}
    assert {path.name for path in folder.glob("*.jsonl*")} == {f"truncated-{part}.jsonl.gz" for part in parts}
    assert "protecting digits" in page.read_text()


def test_trees(tmp_path: Path) -> None:
    page, folder = copied_page(PAGES / "trees.md", tmp_path), tmp_path / "trees"
    folder.mkdir()
    shutil.copy(ROOT / "studies" / "trees" / "results" / "passes.json", folder)  # passes are not timed again
    ran("trees.run", "--problems", 1, "--sampling", "plain", "--page", page, "--folder", folder)
    assert "tree of 16: `tree=" in tables_of(page).read_text()
    assert (tmp_path / "pictures" / "trees" / "where-trees-pay.svg").exists()


def test_training(tmp_path: Path) -> None:
    page, folder, work = copied_page(PAGES / "training.md", tmp_path), tmp_path / "training", tmp_path / "work"
    ran("training.run", "--problems", 3, "--page", page, "--folder", folder, "--work", work)
    losses = read(folder / "losses.json.gz")["drafts"]
    assert [each["loss"] for each in losses].count("lk") == 1
    assert "trained, relaxed, protected" in tables_of(page).read_text()


def test_constraints(tmp_path: Path) -> None:
    plans = [(replace(plan, steps=1, batch_size=4), share) for plan, share in constraints.PLANS]
    folder = constraints.train(tmp_path, plans)
    assert constraints.train(tmp_path) == folder, "it is there already"
    page, results = copied_page(PAGES / "constraints.md", tmp_path), tmp_path / "r.json"
    given = ("--work", tmp_path, "--stories", 4, "--settings", 2, "--results", results, "--page", page)
    ran("constraints.run", *given)
    content = json.loads(results.read_text())
    assert [len(each["outcomes"]) for each in content["settings"]] == [4, 4]
    [journal] = tmp_path.glob("answers-*.jsonl")
    whole = journal.read_text()
    journal.write_text(whole[: len(whole) - 30])  # killed while it wrote the last answer
    ran("constraints.run", *given)
    assert journal.read_text() == whole


def test_budgets(tmp_path: Path) -> None:
    page, results = copied_page(PAGES / "budgets.md", tmp_path), tmp_path / "r.json"
    ran("budgets.run", "--problems", 2, "--results", results, "--page", page)
    assert [row["score"]["answers"] for row in read(results)["settings"]] == [2] * 15
    assert "| paced | 0.005 | 0.050 | 2/2 " in tables_of(page).read_text()
    assert (tmp_path / "pictures/budgets.svg").exists()


def test_budgets_go_on_after_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Namespace(problems=1, seed=0, expected_tokens=60, results=tmp_path / "r.json.gz")
    answered: list[dict[str, Any]] = []

    def answer(setting: dict[str, Any], *_: Any) -> dict[str, Any]:
        if len(answered) == 3:
            raise KeyboardInterrupt
        answered.append(setting)
        return {"setting": setting}

    monkeypatch.setattr(budgets, "answered", answer)
    with pytest.raises(KeyboardInterrupt):
        budgets.measure(given)
    first, answered[:] = [*answered], [{}] * 4
    found = budgets.measure(given)["settings"]
    assert [each["setting"] for each in found] == [*first, *answered[4:]]
    assert len(found) == 15
    assert [*tmp_path.iterdir()] == []
    answered[:] = [{}] * 4
    budgets.measure(Namespace(**vars(given) | {"seed": 1}))
    assert len(answered) == 4 + 15, "of other problems nothing is kept"


def test_the_enumeration_of_budgets_is_that_of_the_page(tmp_path: Path) -> None:
    page = Path(shutil.copy(TABLES / "budgets.md", tmp_path / "page.md"))
    ran("budgets.enumeration", "--results", tmp_path / "r.json", "--page", page)
    assert page.read_text() == (TABLES / "budgets.md").read_text()
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    kept = {row["rule"]: all(kl <= most for kl, most in zip(row["budgets"], (0.02, 0.1, 0.5), strict=True))
            for row in rows}  # fmt: skip
    assert all(held for rule, held in kept.items() if "wrong" not in rule)
    assert not all(kept.values())


def test_the_enumeration_of_schemes_has_the_order_of_the_page(tmp_path: Path) -> None:
    stored = read(schemes.RESULTS)["rows"]
    accepted = {row["way"].removeprefix("a tree, ").strip("`"): row["accepted_per_step"] for row in stored}
    for less, more in pairwise(accepted[name] for name in ("recursive", "traversal", "match", "joint")):
        assert less[0] < more[0]
        assert less[1] <= more[1]
    page = Path(shutil.copy(TABLES / "trees.md", tmp_path / "page.md"))
    ran("trees.schemes", "--toys", 2, "--results", tmp_path / "r.json", "--page", page)
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["way"] for row in rows] == [row["way"] for row in stored]
    assert all(0 < mean <= 2 for row in rows for mean in row["accepted_per_step"])
