"""Several processes answer what one would answer, and end when it is interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.result_files import config_of

from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.evaluation.engines.engine import Answer, Problem
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.workers import check_parallelizable, longest_seconds
from cactus_decoding.lab.evaluation.tasks.harness import HarnessTask
from cactus_decoding.lab.evaluation.tasks.task import Task

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


def command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "import sys; from cactus_decoding.cli import main; sys.exit(main())",
        "eval",
        *arguments,
    ]


def alive(session: int) -> list[Path]:
    """Return the processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended by now
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            found += [path] if state != "Z" and of == str(session) else []
    return found


def without_times(path: Path) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["answers"]["seconds"], line["provenance"]
    return lines


@pytest.mark.slow
def test_two_processes_answer_as_one_does(tmp_path):
    asked = tmp_path / "turns.jsonl"
    turns = ["How many legs do 3 cats have?", "And 4 cats?"]
    asked.write_text("".join(json.dumps({"category": "a", "turns": turns[: 1 + i % 2]}) + "\n" for i in range(3)))
    given = ("--task", "word_problems", "--task", f"spec_bench:path={asked}", "--chat", "--problems", "3",
             "--rule", "cactus:delta=1", "--num-speculative-tokens", "0,4", "--seeds", "0,1",
             "--max-new-tokens", "16", "--draft", "bundled", "--draft", "suffix", "--token-ids")  # fmt: skip
    files = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    for path, more in zip(files, (("--threads", "1"), ("--workers", "2")), strict=True):
        done = subprocess.run(command(*given, *more, "--output", str(path)), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert without_times(files[0]) == without_times(files[1])
    assert any(line["answers"].get("turns") for line in without_times(files[0]))


@pytest.mark.slow
def test_interrupted_all_end_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "results.jsonl"
    given = ("--problems", "24", "--workers", "2", "--max-new-tokens", "32", "--output", str(out))
    process = subprocess.Popen(command(*given), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                               start_new_session=True)  # fmt: skip
    partial = out.with_name("results.jsonl.partial")
    while process.poll() is None and not (partial.exists() and partial.stat().st_size > 2000):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130
    assert "of 24 answers kept" in error
    assert "Traceback" not in error
    kept = partial.read_bytes().count(b"\n")
    assert kept > 0
    until = time.monotonic() + 20  # what clears up behind Python's processes ends after them
    while (left := alive(process.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == [], "every process of the session has ended"
    done = subprocess.run(command(*given[2:], "--problems", "24"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(without_times(out)[0]["answers"]["id"]) == 24


def test_what_learns_from_answer_to_answer_is_not_answered_apart():
    tasks = {"word_problems": Task("word_problems", ())}
    check_parallelizable([config_of(), config_of(tree="static=2.2", num_speculative_tokens=None)], tasks)
    with pytest.raises(ValueError, match="the tree 'adaptive' learns"):
        check_parallelizable([config_of(tree="adaptive", num_speculative_tokens=None)], tasks)
    with pytest.raises(ValueError, match="vLLM starts processes itself"):
        check_parallelizable([config_of(engine="vllm")], tasks)
    with pytest.raises(ValueError, match="sums is asked as a whole"):
        check_parallelizable([config_of(task="sums")], {"sums": HarnessTask("sums", ())})


class Clock:
    """An engine that takes a second for a prompt and a tenth for each further token."""

    def answer(self, prompt, request):
        tokens = request.max_new_tokens
        return Answer("", "length", Metrics(generated=tokens, seconds=1 + 0.1 * (tokens - 1)))


def test_the_longest_time_is_that_of_all_tokens_of_all_answers():
    tasks = {"word_problems": Task("word_problems", (Problem("1", "a"), Problem("2", "b", follow_ups=("c",))))}
    runs = [config_of(problems=2, max_new_tokens=100, seed=seed) for seed in (0, 1)]
    found = longest_seconds(runs, {"bundled:worded": Clock()}, tasks)
    assert found == pytest.approx(2 * 3 * (1 + 0.1 * 100))
    request = config_of(tree="adaptive", num_speculative_tokens=None).request
    learns = [RunConfig("word_problems", "a", "b", problems=2, request=request)]
    assert longest_seconds(learns, {"b": Clock()}, tasks) is None
