"""Runs vLLM's own tests of its rejection sampler, from its source distribution, without and with the plug-in.

    .venv-vllm/bin/python scripts/vllm_upstream_tests.py

Nothing of vLLM's source is kept in this repository: pip fetches it into build/ when it is not there yet. Three runs are
made: vLLM as it is but for the fault that the plug-in works around on the CPU; with the plug-in and no rule; with the
plug-in and `cactus:delta=0` on every request. Each must pass exactly the same tests; the exit code says if it did.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from xml.etree import ElementTree

VERSION = "0.32.0"
FILE = "tests/v1/sample/test_rejection_sampler.py"
BUILD = Path(__file__).resolve().parents[1] / "build"
MODES = ("repaired", "no-rule", "delta-0")


def fetch() -> Path:
    """Return the folder with vLLM's tests, after fetching its source distribution if need be."""
    folder = BUILD / f"vllm-{VERSION}"
    if (folder / FILE).exists():
        return folder
    BUILD.mkdir(exist_ok=True)
    archive = BUILD / f"vllm-{VERSION}.tar.gz"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory() as tools:
        # pip asks a source distribution for its metadata, which takes these tools, and for an engine without kernels
        # no compiler; an isolated build would fetch a second torch
        subprocess.run([*pip, "install", "--target", tools, "setuptools-rust", "setuptools-scm"], check=True)
        environment = {"PYTHONPATH": tools, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION}
        download = ["download", "--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--dest", str(BUILD)]
        subprocess.run([*pip, *download, f"vllm=={VERSION}"], check=True, env=os.environ | environment)
    with tarfile.open(archive) as source:
        wanted = [member for member in source.getmembers() if member.name.startswith(f"vllm-{VERSION}/tests/")]
        source.extractall(BUILD, members=wanted, filter="data")  # its package would hide the installed one
    return folder


def run(folder: Path, mode: str) -> dict[str, str]:
    """Return what became of each test in one mode."""
    with tempfile.TemporaryDirectory() as results:
        report = Path(results) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "vllm_upstream_plugin", "--noconftest", "-c", os.devnull]
        command += ["--rootdir", str(folder), "--junit-xml", str(report), "-p", "no:cacheprovider", FILE]
        environment = {
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(folder), os.environ.get("PYTHONPATH", "")]),
            "UPSTREAM_MODE": mode,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        subprocess.run(command, cwd=folder, env=os.environ | environment)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {case.attrib["name"]: _fate(case) for case in cases}


def _fate(case: ElementTree.Element) -> str:
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            return child.tag
    return "passed"


def main() -> int:
    """Compare the modes."""
    folder = fetch()
    fates = {mode: run(folder, mode) for mode in MODES}
    for mode, results in fates.items():
        print(f"{mode}: {list(results.values()).count('passed')} of {len(results)} passed")
    print("not passed:", *(name for name, fate in fates["repaired"].items() if fate != "passed"), sep="\n  ")
    return 0 if fates["repaired"] == fates["no-rule"] == fates["delta-0"] else 1


if __name__ == "__main__":
    sys.exit(main())
