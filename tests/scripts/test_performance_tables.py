"""The page on performance says what the result files say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "performance.md"


def test_the_tables_of_the_page_are_those_of_the_result_files(tmp_path: Path) -> None:
    written = PAGE.read_text()
    stale = tmp_path / "page.md"
    stale.write_text(re.sub(r"(?<=\| )\d+\.\d+", "9.99", written))
    assert stale.read_text() != written
    command = [sys.executable, str(ROOT / "scripts" / "performance_tables.py"), "--page", str(stale)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert stale.read_text() == written
    assert written.count("| ---") >= 4
