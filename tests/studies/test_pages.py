"""Where a study's tables go."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies.pages import StudyPage, tables_of

MARKED = "# {0}\n\n<!-- begin: {0} -->\n\nold\n\n<!-- end: {0} -->\n"


def test_a_table_goes_where_its_marks_are(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    tables_of(page).parent.mkdir()
    page.write_text(MARKED.format("short"))
    tables_of(page).write_text(MARKED.format("long"))
    pages = StudyPage(page)
    pages.insert("long", "many rows")
    pages.insert("short", "few rows")
    with pytest.raises(ValueError, match="begin: neither"):
        pages.insert("neither", "")
    pages.write()
    assert page.read_text() == MARKED.format("short").replace("old", "few rows")
    assert tables_of(page).read_text() == MARKED.format("long").replace("old", "many rows")
