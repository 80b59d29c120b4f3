"""The scripts and studies of this repository, run as they are typed."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from scripts.pages import tables_of

ROOT = Path(__file__).resolve().parents[2]


def run_script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script, or a module such as `studies.rules.run`, to its end, and keep what it said."""
    begun = [str(ROOT / "scripts" / name)] if name.endswith(".py") else ["-m", name]
    return subprocess.run([sys.executable, *begun, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT)


def benchmark(name: str, folder: str = "benchmarks") -> ModuleType:
    """Import a module of a folder whose files import each other as scripts of one folder do."""
    if (path := str(ROOT / folder)) not in sys.path:
        sys.path.append(path)
    return importlib.import_module(name)


def run_benchmark(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
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
