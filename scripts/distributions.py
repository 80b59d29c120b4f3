"""Builds every distribution of the repository, and runs them where nothing else of the repository is.

    .venv/bin/python scripts/distributions.py build/distributions                 build them, and check their metadata
    .venv/bin/python scripts/distributions.py build/distributions --empty         then install them in an empty
                                              environment, which fetches PyTorch, and write down what that takes
    .venv/bin/python scripts/distributions.py build/distributions --resolve       ask the package index what they would
                                              be installed with on newer versions of Python

The last two write `docs/results/installation.json`, of which the tables of `docs/installation.md` are made.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.pages import columns, put, table  # noqa: E402 - once the path is there
from scripts.results import parser, read, write  # noqa: E402

PAGE = ROOT / "docs" / "installation.md"
PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))]
RESULTS = ROOT / "docs" / "results" / "installation.json"
PROMPT = "Anna has 43 stamps. She gives away 17 stamps. She shares the rest equally among 2 friends. How many stamps "
PROMPT += "does each friend get?"
FIRST_ANSWER = ("cactus", "generate", PROMPT, "--rule", "clamped:width=2", "--protect", "digits", "--seed", "0")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser(__doc__, folder=Path, empty=False, resolve=False).parse_args(arguments)
    shutil.rmtree(given.folder, ignore_errors=True)
    built = [built for project in PROJECTS for built in build(project, given.folder)]
    check_metadata(built)
    wheels = [path for path in built if path.suffix == ".whl"]
    found = {"files": {path.name: path.stat().st_size for path in built}}
    if given.empty:
        found["empty"] = tried_in_an_empty_environment(wheels)
    if given.resolve:
        found["resolved"] = {python: resolved(wheels, python) for python in PYTHONS}
    if given.empty or given.resolve:
        write(RESULTS, (read(RESULTS) if RESULTS.exists() else {}) | found, None)
        put(PAGE, {"installed": tables(read(RESULTS))})
    print(json.dumps(found, indent=1))
    return 0


def build(project: Path, folder: Path) -> list[Path]:
    """Build a distribution's sdist, and its wheel from that; return both."""
    before = set(folder.glob("*"))
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return sorted(set(folder.glob("*")) - before)


def check_metadata(built: Sequence[Path]) -> None:
    """Raise `subprocess.CalledProcessError` where an index would refuse a file's metadata, or warn of them."""
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], check=True)


def environment(folder: Path, visible: str | None = None) -> Path:
    """Return the scripts of a new environment, in which the packages of another folder may be visible."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    if visible is not None:  # one line, whose own .pth files are not read: what is installed editable stays invisible
        (packages_of(folder) / "visible.pth").write_text(f"{visible}\n")
    return folder / "bin"


def outside() -> dict[str, str]:
    """Return the variables of processes that are to see nothing of this environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def install(scripts: Path, *what: str) -> None:
    """Install into an environment."""
    command = [*PIP, "--python", str(scripts / "python"), "install", "--quiet", *what]
    subprocess.run(command, check=True, env=outside())


def run(scripts: Path, *command: str, folder: Path) -> str:
    """Run one of an environment's commands in a folder, without anything of this environment; return what it prints."""
    words = [scripts / command[0], *command[1:]]
    done = subprocess.run(words, cwd=folder, env=outside(), capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def tried_in_an_empty_environment(wheels: Sequence[Path]) -> dict[str, Any]:
    """Install the wheels and all that they need; return what that is, its size, and the time to answers."""
    torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    with tempfile.TemporaryDirectory() as temporary:
        folder, elsewhere = Path(temporary) / "environment", Path(temporary) / "elsewhere"
        elsewhere.mkdir()
        scripts, times = environment(folder), [time.perf_counter()]
        install(scripts, torch, *map(str, wheels))
        times.append(time.perf_counter())
        for _ in range(2):
            answer = run(scripts, *FIRST_ANSWER, folder=elsewhere)
            times.append(time.perf_counter())
        installing, first, second = (after - before for before, after in pairwise(times))
        command = [*PIP, "--python", str(scripts / "python"), "list", "--format", "json"]
        listed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=outside()).stdout)
        sizes = {each.name: megabytes(each) for each in packages_of(folder).iterdir()}
        return {
            "command": f"pip install {torch} {' '.join(path.name for path in wheels)}",
            "packages": {each["name"]: each["version"] for each in listed},
            "megabytes": round(sum(sizes.values()), 1),
            "largest": dict(sorted(sizes.items(), key=lambda each: -each[1])[:6]),
            "seconds to install": round(installing),
            "first command": " ".join(FIRST_ANSWER[:2]),
            "seconds to the first answer": round(first, 1),
            "seconds to the second answer": round(second, 1),
            "answer": answer,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.machine()}",
            "date": datetime.now(UTC).date().isoformat(),
        }


def packages_of(folder: Path) -> Path:
    """Return where an environment's packages are."""
    return Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))


def megabytes(path: Path) -> float:
    """Return how many millions of bytes lie under a path."""
    return round(sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file()) / 1e6, 1)


def resolved(wheels: Sequence[Path], python: str) -> dict[str, str]:
    """Return what pip would install for a version of Python, all of it as wheels; only metadata are fetched."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*PIP, "install", "--quiet", "--dry-run", "--ignore-installed", "--only-binary=:all:"]
        command += ["--python-version", python, "--target", folder, "--report", str(report), *map(str, wheels)]
        subprocess.run(command, check=True)
        found = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    return {each["name"]: each["version"] for each in sorted(found, key=lambda each: each["name"].lower())}


def tables(found: dict[str, Any]) -> str:
    """Return the tables of the page: an empty environment, and newer versions of Python."""
    empty = found["empty"]
    sizes = ", ".join(f"{name} {round(size)}" for name, size in list(empty["largest"].items())[:3])
    taken = table(("what", "found"), [
        ("date", empty["date"]), ("Python", empty["python"]), ("machine", empty["machine"]),
        ("packages", len(empty["packages"])), ("megabytes", f"{empty['megabytes']:,.0f} ({sizes})"),
        ("seconds to install, downloads included", empty["seconds to install"]),
        ("seconds to the first answer", f"{empty['seconds to the first answer']:.1f}"),
        ("seconds to the next one, from a process of its own", f"{empty['seconds to the second answer']:.1f}"),
    ])  # fmt: skip
    chosen = [*found["resolved"].items()]
    versions = columns(chosen, {
        "Python": "{0}", "torch": "{1[torch]}", "transformers": "{1[transformers]}", "numpy": "{1[numpy]}",
        "packages that pip chooses, all of them wheels": lambda row: len(row[1]),
    })  # fmt: skip
    return f"{taken}\n\n{versions}"


if __name__ == "__main__":
    sys.exit(main())
