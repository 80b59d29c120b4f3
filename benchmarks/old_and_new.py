"""The same requests to this tree and to an older one: does each part of the package answer as before?

    ../.venv/bin/python old_and_new.py REVISION                           every part but vLLM's
    ../.venv/bin/python old_and_new.py REVISION --keep old.json           and keep the old answers for the next run
    ../.venv/bin/python old_and_new.py REVISION --parts gguf,server --requests 50 --seed 1
    ../.venv/bin/python old_and_new.py REVISION --parts vllm --vllm-python ../.venv-vllm/bin/python

Each tree answers in processes of its own, by public names (`old_and_new_answers.py`). The requests are plain JSON, and
are made once (`old_and_new_requests.py`). Arithmetic is fixed: one thread, the same kernels, files of float32. Tokens,
texts, counts and status codes must be equal, other numbers within `--tolerance`. Where both trees refuse, the wording
may differ, and so may the type, TypeError or ValueError: that is counted by itself, and is no difference. Draft lengths
that go by measured times are left out. The exit code is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.old_and_new_requests import BY_TIME, PARTS, requests_of  # noqa: E402 - once the path is there

CHILD = ROOT / "benchmarks" / "old_and_new_answers.py"
OUTCOMES = ("equal", "refused by both", "failed in both", "different", "refused by the old", "refused by the new")
SAME = OUTCOMES[:3]
FIXED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_CBWR": "AUTO",  # the same results from run to run
    "ATEN_CPU_CAPABILITY": "avx2",
    "PYTHONHASHSEED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "COLUMNS": "120",
    "NO_COLOR": "1",
}
"""Environment of both trees."""


def environment_of(tree: Path, cache: Path) -> dict[str, str]:
    """Return the environment of a process that answers for a tree."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CACTUS_", "FORCE_COLOR"))}
    # what else is in the path goes on being there: an older tree may need an older version of a library
    path = os.pathsep.join([str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return inherited | FIXED | {"PYTHONPATH": path, "XDG_CACHE_HOME": str(cache)}


def run(part: str, tree: Path, assets: Path, python: str, requests: list[Any] | None = None) -> list[Any]:
    """Have a tree answer a part's requests, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder, "requests.jsonl"), Path(folder, "answers.jsonl")
        asked.write_text("".join(json.dumps(each) + "\n" for each in requests or ()))
        command = [python, str(CHILD), part, str(tree), str(assets), str(asked), str(answered)]
        environment = environment_of(tree, Path(folder, "cache"))
        subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return [json.loads(line) for line in answered.read_text().splitlines()] if requests else []


# --- the old tree ---


@contextmanager
def worktree_of(commit: str) -> Iterator[Path]:
    """Check a commit out, into a folder that goes again."""
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "old")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def machine() -> dict[str, str]:
    """Return what answers may depend on besides the tree: the processor, and versions of libraries."""
    found = {"processor": platform.processor() or platform.machine(), "python": platform.python_version()}
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        found["processor"] = models[0] if models else found["processor"]
    for name in ("torch", "transformers", "llama-cpp-python", "numpy", "tokenizers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


class Kept:
    """Answers of old trees in a file, by commit, part, seed and number of requests.

    They count only for the same requests, on the same machine.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.values: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}
        self.on = machine()

    def get(self, key: str, requests: list[Any]) -> list[Any] | None:
        """Return kept answers, or None."""
        found = self.values.get(key)
        if found is None or (found["requests"], found["machine"]) != (digest(requests), self.on):
            return None
        answers: list[Any] = found["answers"]
        return answers

    def put(self, key: str, requests: list[Any], answers: list[Any]) -> None:
        """Keep answers."""
        self.values[key] = {"requests": digest(requests), "machine": self.on, "answers": answers}
        if self.path is not None:
            self.path.write_text(json.dumps(self.values))


def digest(requests: list[Any]) -> str:
    """Return a fingerprint of requests."""
    return hashlib.sha256(json.dumps(requests).encode()).hexdigest()


# --- what differs ---


def differing(old: Any, new: Any, tolerance: float, path: str = "") -> str | None:
    """Return where two answers differ first, if anywhere."""
    if isinstance(old, dict) and isinstance(new, dict):
        names = [*old, *(name for name in new if name not in old)]
        places = (
            differing(old.get(name, "nothing"), new.get(name, "nothing"), tolerance, f"{path}.{name}")
            for name in names
            if name != "said" or not is_text(old.get(name)) or not is_text(new.get(name))
        )
        return next((place for place in places if place is not None), None)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        places = (differing(a, b, tolerance, f"{path}[{i}]") for i, (a, b) in enumerate(zip(old, new, strict=True)))
        return next((place for place in places if place is not None), None)
    if (type(old) is float and isinstance(new, float | int)) or (type(new) is float and isinstance(old, float | int)):
        return None if math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance) else path
    return None if type(old) is type(new) and old == new else path


def is_text(value: Any) -> bool:
    """Whether it is a sentence, whose wording may change."""
    return isinstance(value, str)


def flattened(answer: Any) -> list[Any]:
    """Return the answers of a request that holds several; itself, if it holds none."""
    inner = answer.get("answer")
    if isinstance(inner, list) and inner and all(isinstance(each, dict) and kind_of(each) for each in inner):
        return [each for one in inner for each in flattened(one)]
    return [answer]


def kind_of(answer: Any) -> str | None:
    """Return whether a tree answered, refused or failed."""
    return next((kind for kind in ("answer", "refused", "failed") if kind in answer), None)


def outcome_of(old: Any, new: Any, tolerance: float) -> tuple[str, str]:
    """Return what two answers to one request come to, and where they differ."""
    kinds = kind_of(old), kind_of(new)
    if kinds == ("refused", "refused"):
        same_status = old["refused"] == new["refused"] or not old["refused"].startswith(("status", "exit"))
        return ("refused by both", "") if same_status else ("different", "refused")
    if kinds == ("failed", "failed"):
        return ("failed in both", "") if old["failed"] == new["failed"] else ("different", "failed")
    if "refused" in kinds and "answer" in kinds:
        return f"refused by the {'old' if kinds[0] == 'refused' else 'new'}", ""
    if kinds[0] != kinds[1]:
        return "different", "failed"
    place = differing(old, new, tolerance)
    return ("equal", "") if place is None else ("different", place.lstrip("."))


def wording(answer: Any) -> str:
    """Return how a refusal is worded, without addresses in memory and folders of this run."""
    folder = re.escape(tempfile.gettempdir())
    return re.sub(rf"0x[0-9a-fA-F]+|{folder}/\S*/", "", str(answer.get("said", "")))


def compare(asked: list[Any], old: list[Any], new: list[Any], tolerance: float, limit: int) -> dict[str, Any]:
    """Return how many answers there are of each outcome, and the first that differ, or are worded otherwise."""
    outcomes, wordings, types = Counter(dict.fromkeys(OUTCOMES, 0)), 0, 0
    differences: list[Any] = []
    worded: list[Any] = []
    for ask, before, after in zip(asked, old, new, strict=True):
        pairs = [(before, after)]
        if len(flattened(before)) == len(flattened(after)):
            pairs = list(zip(flattened(before), flattened(after), strict=True))
        for a, b in pairs:
            outcome, where = outcome_of(a, b, tolerance)
            outcomes[outcome] += 1
            if outcome not in SAME:
                differences.append({"outcome": outcome, "where": where, "request": ask, "old": a, "new": b})
            elif wording(a) != wording(b) or a.get("refused") != b.get("refused"):
                wordings += wording(a) != wording(b)
                types += a.get("refused") != b.get("refused")
                worded.append({"request": ask, "old": a, "new": b})
    return {
        "requests": len(asked),
        "answers": outcomes.total(),
        **outcomes,
        "worded otherwise": wordings,
        "of another type": types,
        "differences": differences[:limit],
        "wordings": worded[:limit],
    }


def table(results: dict[str, Any]) -> str:
    """Return a table of all parts."""
    names = ("requests", "answers", *OUTCOMES, "worded otherwise", "of another type")
    head = ["part", *names]
    rows = [head, *([part, *(str(found[name]) for name in names)] for part, found in results.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


# --- the command ---


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a git revision")
    parser.add_argument("--parts", default=",".join(part for part in PARTS if part != "vllm"), help=", ".join(PARTS))
    parser.add_argument("--requests", type=int, help="random ones of each part; tables are always asked whole")
    parser.add_argument("--first", type=int, help="ask only so many of each part's list, spread over it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=24, help="of a response")
    parser.add_argument("--tolerance", type=float, default=1e-9, help="of nats, probabilities and the like")
    parser.add_argument("--keep", type=Path, help="a file of the old tree's answers, read and added to")
    parser.add_argument("--output", type=Path, help="a JSON file with counts, differences and other wordings")
    parser.add_argument("--limit", type=int, default=50, help="differences of each part in that file")
    parser.add_argument("--vllm-python", default=str(ROOT / ".venv-vllm/bin/python"), help="of the environment of vLLM")
    given = parser.parse_args()
    if unknown := [part for part in given.parts.split(",") if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: known are {', '.join(PARTS)}")
    return given


def part_requests(part: str, given: argparse.Namespace) -> list[Any]:
    """Return a part's requests, or some of them."""
    asked = requests_of(part, given.requests, given.seed, given.tokens)
    return asked if given.first is None else asked[:: max(1, len(asked) // given.first)]


def main() -> None:
    """Compare, and exit with 1 where something differs."""
    given = arguments()
    name = subprocess.run(["git", "-C", str(ROOT), "rev-parse", given.old], check=True, capture_output=True, text=True)
    commit, kept, results = name.stdout.strip(), Kept(given.keep), dict[str, Any]()
    with worktree_of(commit) as old_tree, tempfile.TemporaryDirectory() as folder:
        assets = Path(folder, "models")
        run("assets", old_tree, assets, sys.executable)
        for part in given.parts.split(","):
            asked, python = part_requests(part, given), given.vllm_python if part == "vllm" else sys.executable
            key = f"{commit} {part} seed={given.seed} tokens={given.tokens} requests={len(asked)}"
            before = kept.get(key, asked)
            if before is None:
                print(f"{part}: {len(asked)} requests to {commit[:8]}", file=sys.stderr, flush=True)
                before = run(part, old_tree, assets, python, asked)
                kept.put(key, asked, before)
            print(f"{part}: {len(asked)} requests to this tree", file=sys.stderr, flush=True)
            after = run(part, ROOT, assets, python, asked)
            results[part] = compare(asked, before, after, given.tolerance, given.limit)
            report(part, results[part])
    if given.output is not None:
        left_out = {"draft lengths by measured time": BY_TIME}
        whole = {"old": commit, "seed": given.seed, "machine": kept.on, "left out": left_out, "parts": results}
        given.output.write_text(json.dumps(whole, indent=1) + "\n")
    print(table(results))
    sys.exit(any(found[outcome] for found in results.values() for outcome in OUTCOMES if outcome not in SAME))


def report(part: str, found: dict[str, Any]) -> None:
    """Print the first differences of a part."""
    for each in found["differences"][:5]:
        for name in ("outcome", "where", "request", "old", "new"):
            print(f"{part} {name}: {json.dumps(each[name])[:400]}", file=sys.stderr)


if __name__ == "__main__":
    main()
