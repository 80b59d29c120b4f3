"""The pages on performance say what the result files say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.scripts import ROOT, run_script

PAGES = ("performance", "vllm", "laptop", "studies/tables/proposals")


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_of_a_page_are_those_of_the_result_files(tmp_path: Path, name: str) -> None:
    written = (ROOT / "docs" / f"{name}.md").read_text()
    stale = tmp_path / "page.md"
    marked = re.compile(r"<!-- begin: \w+ -->.*?<!-- end: ", re.DOTALL)
    stale.write_text(marked.sub(lambda part: re.sub(r"(?<=\| )\d+\.\d+", "9.99", part[0]), written))
    assert stale.read_text() != written
    assert run_script("performance_tables.py", "--page", stale).returncode == 0
    assert stale.read_text() == written
    assert written.count("|---") >= 2
