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
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
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
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    with tempfile.TemporaryDirectory() as tools:
        # pip asks a source distribution for its metadata, which takes these tools, and for an engine without kernels
        # no compiler; an isolated build would fetch a second torch
        subprocess.run([*pip, "install", "--target", tools, "setuptools-rust", "setuptools-scm"], check=True)
        environment = {"PYTHONPATH": tools, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION}
        download = ["download", "--no-deps", "--no-binary", "vllm", "--no-build-isolation", "--dest", str(BUILD)]
        subprocess.run([*pip, *download, f"vllm=={VERSION}"], check=True, env=os.environ | environment)
    with tarfile.open(BUILD / f"vllm-{VERSION}.tar.gz") as source:
        wanted = [member for member in source.getmembers() if member.name.startswith(f"vllm-{VERSION}/tests/")]
        source.extractall(BUILD, members=wanted, filter="data")  # its package would hide the installed one
    return folder


def run(folder: Path, mode: str) -> dict[str, str]:
    """Return what became of each test in one mode."""
    with tempfile.TemporaryDirectory() as results:
        report = Path(results) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", Path(__file__).stem, "--noconftest", "-c", os.devnull]
        command += ["--rootdir", str(folder), "--junit-xml", str(report), "-p", "no:cacheprovider", FILE]
        seen = [str(Path(__file__).parent), str(folder), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(seen), "UPSTREAM_MODE": mode}
        environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        subprocess.run(command, cwd=folder, env=os.environ | environment)
        cases = [*ElementTree.parse(report).getroot().iter("testcase")]
    ends = ("failure", "error", "skipped")
    return {case.attrib["name"]: next((each.tag for each in case if each.tag in ends), "passed") for case in cases}


def set_up(mode: str) -> None:
    """Bring the plug-in into pytest's process, in one of the modes."""
    import torch
    from vllm.platforms import current_platform
    from vllm.v1.sample import rejection_sampler

    from cactus_decoding.engines.vllm import v1
    from cactus_decoding.engines.vllm.extra_args import ServerConfig
    from cactus_decoding.engines.vllm.patches import repair_expansion
    from cactus_decoding.engines.vllm.plugin import register

    cpu = torch.device("cpu")
    current_platform.register_triton_kernel_overrides()
    repair_expansion(rejection_sampler, cpu)
    if mode != "repaired":
        register()
        v1.replace(rejection_sampler, "rejection_sample", v1.with_relaxation)

    def every_request_at_delta_0(metadata: Any) -> v1.BatchRules:
        """Return a batch in which each request that is not greedy has the rule, whatever the test has set up."""
        rules = v1.BatchRules(ServerConfig(), cpu, max_num_requests=1)
        temperatures = [] if metadata.temperature is None else metadata.temperature.tolist()
        for index, temperature in enumerate(temperatures):
            asked = {"acceptance_rule": "cactus:delta=0"}
            entry = rules.admit(SimpleNamespace(temperature=temperature, extra_args=asked), begun=False)
            if entry is not None and not metadata.all_greedy:
                rules.requests[index] = entry
        return rules

    if mode == "delta-0":
        v1.batch_rules = every_request_at_delta_0


def main() -> int:
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    folder = fetch()
    fates = {mode: run(folder, mode) for mode in MODES}
    for mode, results in fates.items():
        print(f"{mode}: {list(results.values()).count('passed')} of {len(results)} passed")
    print("not passed:", *(name for name, fate in fates["repaired"].items() if fate != "passed"), sep="\n  ")
    return 0 if fates["repaired"] == fates["no-rule"] == fates["delta-0"] else 1


if __name__ == "__main__":
    sys.exit(main())
if "UPSTREAM_MODE" in os.environ:  # this is pytest, which loads this file as a plug-in of its own
    set_up(os.environ["UPSTREAM_MODE"])
