"""The tables about conformance say what the result files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.pages import put
from studies.conformance.page import TABLES


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.parent.name)
def test_the_tables_are_those_of_the_result_files(page: Path, tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(page.read_text())
    put(copy, {name: make() for name, make in TABLES[page].items()})
    assert copy.read_text() == page.read_text()
