"""Every page of a study is what its script renders from the stored result files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.scripts import ROOT, assert_rendered, copied_page, run_script

DOCS, STUDIES = ROOT / "docs", ROOT / "studies"
LAPTOP, IMPORTANCE = "studies/tables/laptop.md", "studies/tables/importance.md"
PAGES: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"{name}.run": (f"studies/{name}.md", {"folder": STUDIES / name / "results"})
        for name in ("rules", "training", "relaxing", "trees")
    },
    **{
        f"{name}.run": (f"studies/{name}.md", {"pictures": [f"pictures/{name}.svg"]})
        for name in ("constraints", "budgets")
    },
    "planning.check": ("studies/planning.md", {"pictures": ["pictures/planning/plan-and-measured.svg"]}),
    "serving.goodput": ("studies/tables/serving.md", {}),
    "budgets.enumeration": ("studies/tables/budgets.md", {}),
    "trees.schemes": ("studies/tables/trees.md", {}),
    "rules.papers": ("studies/tables/deployed.md", {}),
    "rules.fly_kernels": ("fly.md", {}),
    **{f"importance.{name}": (IMPORTANCE, {}) for name in ("run", "ensemble")},
    "importance.recurring": ("recurring.md", {}),
    "greedy_agreement.run": ("hugging_face.md", {}),
    **{f"laptop.{name}": (LAPTOP, {}) for name in ("benchmark", "overhead", "self_speculation", "gguf_agreement")},
}


@pytest.mark.slow
@pytest.mark.parametrize("study", PAGES)
def test_page_and_pictures_are_those_of_the_result_files(study: str, tmp_path: Path) -> None:
    page, more = PAGES[study]
    assert_rendered(f"studies.{study}", DOCS / page, tmp_path, **more)


@pytest.mark.slow
def test_structured_answers_are_rendered_apart(tmp_path: Path) -> None:
    page = DOCS / "studies" / "structured_answers.md"
    copy = copied_page(page, tmp_path)
    done = run_script("studies.structured_answers.page", "--page", copy)
    assert done.returncode == 0, done.stderr
    assert copy.read_text() == page.read_text()
