"""Writes what tests took, from the JUnit files of a run, to tests/durations.json: the slowest first."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 2.0
"""Tests that took less, with all their cases, are counted in their room alone."""


def measured(files: Iterable[Path]) -> dict[str, list[float]]:
    """Return the seconds of each case by test, ``module::name`` without the case's parameters."""
    tests: dict[str, list[float]] = {}
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            module = case.attrib["classname"].removeprefix("tests.")
            name = f"{module}::{case.attrib['name'].partition('[')[0]}"
            tests.setdefault(name, []).append(float(case.attrib["time"]))
    return tests


def room(test: str) -> str:
    """Return the room of a test: its first folder, or two of them in `integrations`."""
    folders = test.partition("::")[0].split(".")
    if folders[0] in ("src", "cactus_decoding"):
        return "doctests"
    return "/".join(folders[: 2 if folders[0] == "integrations" else 1])


def summed(tests: dict[str, list[float]]) -> dict[str, object]:
    """Return cases and seconds of each room, and of each test from `SECONDS` on."""
    rooms: dict[str, list[float]] = {}
    for name, seconds in tests.items():
        rooms.setdefault(room(name), []).extend(seconds)
    slowest = {name: each for name, each in tests.items() if sum(each) >= SECONDS}
    return {
        key: {
            name: {"cases": len(each), "seconds": round(sum(each), 1)}
            for name, each in sorted(of.items(), key=lambda item: -sum(item[1]))
        }
        for key, of in (("rooms", rooms), ("slowest", slowest))
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="JUnit files")
    parser.add_argument("--output", type=Path, default=ROOT / "tests" / "durations.json")
    given = parser.parse_args()
    missing = [str(file) for file in given.files if not file.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}; run `make test-all` first")
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    result = {"commit": commit, "cores": os.cpu_count()} | summed(measured(given.files))
    given.output.write_text(json.dumps(result, indent=1) + "\n")
