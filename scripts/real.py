"""Checks every engine on GGUF files of chat models in about ten minutes: `make real REAL=FOLDER`.

Each check is a command that must end well and say something; what one engine lacks here is said, not hidden.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

SECONDS = 600
"""What all checks may take together; those that are left then are not run, and the check fails."""
QUESTIONS = {"How many days do two weeks have?": "14", "What is 7 times 6?": "42"}
VLLM = Path(".venv-vllm/bin/python")
CACTUS = "import sys; from cactus_decoding.cli import main; sys.exit(main())"


class Check(NamedTuple):
    """What is checked, by a command of `cactus`."""

    name: str
    arguments: tuple[str, ...]
    python: str = sys.executable


def pairs(files: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Yield pairs of files with the same tokens, the larger first."""
    from cactus_decoding.core.models.loading import load_tokenizer

    ordered = sorted(files, key=lambda path: path.stat().st_size, reverse=True)
    tokens = {path: load_tokenizer("target", path).get_vocab() for path in ordered}
    yield from ((large, small) for large, small in combinations(ordered, 2) if tokens[large] == tokens[small])


def checks(files: list[Path], work: Path) -> Iterator[Check]:
    """Yield the checks, the cheapest first."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from benchmarks.unpack import unpack

    task = work / "questions.jsonl"
    lines = [json.dumps({"prompt": question, "answer": answer}) for question, answer in QUESTIONS.items()]
    task.write_text("\n".join(lines) + "\n")
    asked = ("--task", f"jsonl:path={task},extract=last_number", "--chat", "--temperature", "0.7", "--top-p", "0.8",
             "--max-new-tokens", "24")  # fmt: skip
    rules = ("--rule", "lossless", "--rule", "cactus:delta=1", "--num-speculative-tokens", "0,3")

    def answers(name: str, target: Path | str, draft: Path | str, *more: str, python: str = sys.executable) -> Check:
        out = str(work / f"{name}.jsonl".replace(" ", "-"))
        given = ("--target", str(target), "--draft", str(draft), *rules, *asked, "--problems", "2", "--output", out)
        return Check(name, ("eval", *given, *more), python)

    smallest = min(files, key=lambda path: path.stat().st_size)
    for file in sorted(files, key=lambda path: path.stat().st_size):
        yield Check(f"llama.cpp, {file.name}, look-up", ("generate", next(iter(QUESTIONS)), "--target", str(file),
                    "--chat", "--temperature", "0", "--max-new-tokens", "24", "--json"))  # fmt: skip
    folder = work / "transformers"
    unpack(smallest, folder, "float32")
    yield answers("transformers, " + smallest.stem, folder, "suffix")
    if VLLM.exists():
        yield answers("vLLM, " + smallest.stem, folder, "ngram", "--engine", "vllm", python=str(VLLM))
    else:
        print(f"no vLLM here ({VLLM} is missing; 'make test-vllm' makes it)")
    found = list(pairs(files))
    for large, small in found[:1]:
        yield answers(f"llama.cpp, {large.stem} with {small.stem}", large, small)
        out = str(work / "frontier.json")
        given = ("--positions", "40", "--points", "2", "--family", "clamped", "--output", out, *asked)
        yield Check("rows of that pair", ("frontier", "--target", str(large), "--draft", str(small), *given))
    if not found:
        print("no two of the files have the same tokens: no pair is checked")


def problem_of(check: Check, seconds: float) -> str:
    """Run a check; return what went wrong, or nothing."""
    command = [check.python, "-c", CACTUS, *check.arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1))
    except subprocess.TimeoutExpired:
        return f"not done when {SECONDS} seconds were over"
    if done.returncode or not done.stdout.strip():
        return (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
    return ""


def main() -> int:
    """Run the checks; return how many failed."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("folder", type=Path, help="GGUF files of chat models")
    folder = made.parse_args().folder.expanduser().resolve()
    files = sorted(folder.glob("*.gguf")) if folder.is_dir() else []
    if not files:
        made.error(f"{folder} holds no GGUF files: name a folder that does, as in make real REAL=~/models")
    began, failed = time.monotonic(), 0
    with TemporaryDirectory() as work:
        for check in checks(files, Path(work)):
            start = time.monotonic()
            problem = problem_of(check, SECONDS - (start - began))
            failed += bool(problem)
            took = f"{'FAILED' if problem else 'ok':<7}{time.monotonic() - start:6.0f} s"
            print(f"{took}  {check.name} {problem}".rstrip(), flush=True)
    print(f"{failed} failed, {time.monotonic() - began:.0f} seconds")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
