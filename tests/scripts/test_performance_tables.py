"""The page on performance says what the result files say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "docs" / f"{name}.md"
    for name in (
        "performance",
        "studies/tables/performance",
        "studies/tables/proposals",
        "studies/tables/laptop",
    )
]


@pytest.mark.parametrize("page", PAGES, ids=["short", "long", "long proposals", "long GGUF"])
def test_the_tables_of_a_page_are_those_of_the_result_files(tmp_path: Path, page: Path) -> None:
    written = page.read_text()
    stale = tmp_path / "page.md"
    # those two are of studies
    marked = re.compile(r"<!-- begin: (?!overhead|agreement)\w+ -->.*?<!-- end: ", re.DOTALL)
    stale.write_text(marked.sub(lambda part: re.sub(r"(?<=\| )\d+\.\d+", "9.99", part[0]), written))
    assert stale.read_text() != written
    command = [sys.executable, str(ROOT / "scripts" / "performance_tables.py"), "--page", str(stale)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert stale.read_text() == written
    assert written.count("|---") >= 2
