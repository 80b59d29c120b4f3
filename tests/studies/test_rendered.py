"""Every page of a study is what its script renders from the stored result files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.scripts import ROOT, assert_rendered, run_script

DOCS, STUDIES = ROOT / "docs", ROOT / "studies"
LAPTOP = "studies/tables/laptop.md"
IMPORTANCE = {name: "studies/tables/importance.md" for name in ("run", "ensemble")} | {"recurring": "recurring.md"}
PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name}.run": (f"studies/{name}.md", {"folder": STUDIES / name / "results"})
        for name in ("rules", "training", "relaxing", "trees")
    },
    "constraints.run": ("studies/constraints.md", {"picture": DOCS / "studies/pictures/constraints.svg"}),
    "budgets.run": ("studies/tables/budgets.md", {"picture": DOCS / "studies/pictures/budgets.svg"}),
    **{f"importance.{name}": (page, {}) for name, page in IMPORTANCE.items()},
    "greedy_agreement.run": ("hugging_face.md", {}),
    **{f"laptop.{name}": (LAPTOP, {}) for name in ("benchmark", "overhead", "self_speculation", "gguf_agreement")},
}


@pytest.mark.slow
@pytest.mark.parametrize("study", PAGES)
def test_page_and_pictures_are_those_of_the_result_files(study: str, tmp_path: Path) -> None:
    page, more = PAGES[study]
    assert_rendered(f"studies.{study}", DOCS / page, tmp_path, **more)


OTHERS = {
    "serving.goodput": ("studies/tables/serving.md", ("page", STUDIES / "serving/results/goodput.json"), None),
    "planning.check": ("studies/planning.md", ("--only-render", "--page"), "pictures/planning/plan-and-measured.svg"),
    "structured_answers.page": ("studies/structured_answers.md", ("--page",), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("study", OTHERS)
def test_pages_that_are_asked_for_otherwise(study: str, tmp_path: Path) -> None:
    name, given, drawn = OTHERS[study]
    page = DOCS / name
    copy = Path(shutil.copy(page, tmp_path))
    done = run_script(f"studies.{study}", *given, copy)
    assert done.returncode == 0, done.stderr
    assert copy.read_text() == page.read_text()
    if drawn is not None:
        assert (tmp_path / drawn).read_text() == (page.parent / drawn).read_text()
