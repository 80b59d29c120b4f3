"""The scripts and studies of this repository, run as they are typed."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from scripts.pages import tables_of

ROOT = Path(__file__).resolve().parents[2]


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script, or a module such as `studies.rules.run`, to its end, and keep what it said."""
    begun = [str(ROOT / "scripts" / name)] if name.endswith(".py") else ["-m", name]
    return subprocess.run([sys.executable, *begun, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)


def benchmark(name: str) -> ModuleType:
    """Import a module of `benchmarks/`, whose files import each other as scripts of one folder do."""
    folder = str(ROOT / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


def run_benchmark(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a file of `benchmarks/` to its end, and keep what it said."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def copied_page(page: Path, work: Path) -> Path:
    """Copy a page, and that of its long tables where there is one, into a folder; return the copy."""
    copy = work / "page.md"
    shutil.copy(page, copy)
    if tables_of(page).exists():
        tables_of(copy).parent.mkdir(exist_ok=True)
        shutil.copy(tables_of(page), tables_of(copy))
    return copy


def assert_rendered(
    name: str, page: Path, work: Path, *, folder: Path | None = None, pictures: Sequence[str] = ()
) -> None:
    """Assert that a page and its pictures are what a script renders from the result files, anew and elsewhere.

    Args:
        name: of the script.
        page: that it writes tables into.
        work: an empty folder.
        folder: of its result files; its pictures are in a folder of the study's name, beside the page.
        pictures: others, by their paths beside the page.
    """
    copy = copied_page(page, work)
    given, written = ["--only-render", "--page", copy], {page: copy}
    if tables_of(page).exists():
        written[tables_of(page)] = tables_of(copy)
    if folder is not None:
        given += ["--folder", folder]
        drawn = (page.parent / "pictures" / folder.parent.name).glob("*.svg")
        pictures = [*pictures, *(str(each.relative_to(page.parent)) for each in drawn)]
        assert pictures
    written |= {page.parent / each: work / each for each in pictures}
    done = run_script(name, *given)
    assert done.returncode == 0, done.stderr
    for expected, found in written.items():
        assert found.read_text() == expected.read_text(), expected.name
