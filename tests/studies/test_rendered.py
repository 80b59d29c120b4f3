"""Every page of a study is what the study shows of its stored result files."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
from support.scripts import ROOT, copied_page

from scripts.pages import put, tables_of
from scripts.results import read
from studies.study import SAMPLINGS

PAGES = {
    **{f"{name}.run": f"studies/{name}.md" for name in ("training", "trees", "constraints", "budgets")},
    **{f"{name}.run": f"studies/tables/{name}.md" for name in ("rules", "relaxing", "real_pair")},
    "relaxing.real": "studies/relaxing.md",
    "planning.check": "studies/planning.md",
    **{
        f"structured_answers.{name}": "studies/structured_answers.md"
        for name in ("suite", "answers", "agents", "loops")
    },
    "budgets.enumeration": "studies/tables/budgets.md",
    "trees.schemes": "studies/tables/trees.md",
    "rules.published": "rules/index.md",
    "rules.papers": "studies/tables/deployed.md",
}
OF_SEVERAL_FILES = ("rules.run", "relaxing.run", "trees.run", "training.run")
"""Studies with a folder of result files."""


def shown(study: str) -> Mapping[str, str]:
    """Return the tables and pictures of a study."""
    module = import_module(f"studies.{study}")
    if study in OF_SEVERAL_FILES:
        return module.shown(module.FOLDER, [*SAMPLINGS])
    return module.shown(read(module.RESULTS))


@pytest.mark.slow
@pytest.mark.parametrize("study", PAGES)
def test_page_and_pictures_are_those_of_the_result_files(study: str, tmp_path: Path) -> None:
    page, work = ROOT / "docs" / PAGES[study], tmp_path / "tables"
    work.mkdir()
    copy, found = copied_page(page, work), shown(study)
    put(copy, found)
    drawn = [name for name in found if name.endswith((".svg", ".csv"))]
    written = {page: copy, tables_of(page): tables_of(copy)} | {page.parent / each: work / each for each in drawn}
    for expected, made in written.items():
        if expected.exists():
            assert made.read_text() == expected.read_text(), expected.name
