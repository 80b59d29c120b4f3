"""The scripts of this repository, run as they are typed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script to its end, and keep what it said."""
    command = [sys.executable, str(ROOT / "scripts" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def assert_rendered(
    name: str, page: Path, work: Path, *, folder: Path | None = None, picture: Path | None = None
) -> None:
    """Assert that a page and its pictures are what a script renders from the result files, anew and elsewhere.

    Args:
        name: of the script.
        page: that it writes tables into.
        work: an empty folder.
        folder: of its result files, where it also writes its pictures.
        picture: the one that it writes, where it is asked for by itself.
    """
    given, written = ["--only-render", "--page", shutil.copy(page, work / "page.md")], {page: work / "page.md"}
    if folder is not None:
        given += ["--folder", shutil.copytree(folder, work / folder.name, ignore=shutil.ignore_patterns("*.svg"))]
        pictures = list(folder.glob("*.svg"))
        assert pictures
        written |= {each: work / folder.name / each.name for each in pictures}
    if picture is not None:
        given += ["--picture", work / "picture.svg"]
        written[picture] = work / "picture.svg"
    done = run_script(name, *given)
    assert done.returncode == 0, done.stderr
    for expected, found in written.items():
        assert found.read_text() == expected.read_text(), expected.name
