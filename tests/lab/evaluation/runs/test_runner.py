"""`cactus eval`: result files that survive a kill, paired answers, several processes, and errors before any work."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.command_line import process
from support.patience import PATIENCE
from support.result_files import config_of

from cactus_decoding import load_pair, stream
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine, Problem
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.runs.results import read_results
from cactus_decoding.lab.evaluation.runs.workers import Workers, check_parallelizable, longest_seconds
from cactus_decoding.lab.evaluation.tasks.harness import HarnessTask
from cactus_decoding.lab.evaluation.tasks.task import Task
from cactus_decoding.zoo.word_problems import word_problems

SMALL = ("--problems", "3", "--max-new-tokens", "24", "--threads", "1")
GRID = (*SMALL, "--rule", "lossless", "--rule", "cactus:delta=1", "--rule", "clamped:width=2.0",
        "--num-speculative-tokens", "0,4", "--seeds", "0,1", "--verification", "token")  # fmt: skip
NUM_RUNS = 2 * (1 + 3)

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


def end_of(run: subprocess.Popen) -> tuple[int, str]:
    """Wait for a process, and return its exit code and stderr."""
    _, error = run.communicate()
    return run.returncode, error


def without_times(path) -> list[dict]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["answers"]["seconds"], line["provenance"]["date"], line["provenance"]["arguments"]["out"]
    return lines


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file of a run that nothing interrupts."""
    path = tmp_path_factory.mktemp("whole") / "results.jsonl"
    code, error = end_of(process("eval", *GRID, "--output", str(path)))
    assert code == 0, error
    return path


def test_the_file_has_every_run_once_in_the_agreed_format(whole):
    lines = without_times(whole)
    assert len(lines) == NUM_RUNS
    first = lines[0]
    assert first["schema"] == 1
    assert first["cell"] == config_of(num_speculative_tokens=0, max_new_tokens=24, problems=3).as_dict()
    assert set(first) == {"schema", "cell", "answers", "provenance"}
    assert {len(column) for line in lines for column in line["answers"].values()} == {3}
    assert {"commit", "versions", "arguments", "machine", "problems"} <= set(first["provenance"])
    assert not whole.with_name("results.jsonl.partial").exists()
    alone, lossless, *_ = read_results(whole)
    problem = next(word_problems("test", seed=0))
    response = stream(load_pair(), problem.prompt, num_speculative_tokens=4, max_new_tokens=24, seed=seed_of(0, 0))
    steps = list(response)
    assert lossless.answers["accepted"][0] == sum(step.num_accepted for step in steps)
    assert lossless.answers["steps"][0] == len(steps)
    assert alone.answers["id"] == lossless.answers["id"]


@pytest.mark.slow
def test_killed_at_random_points_the_file_becomes_the_same(whole, tmp_path):
    path = tmp_path / "results.jsonl"
    partial = path.with_name("results.jsonl.partial")
    draw, kills = random.Random(0), 0

    def progress() -> int:
        return sum(file.stat().st_size for file in (path, partial) if file.exists())

    while kills < 3:  # however fast the machine is, the kill falls somewhere between two and a few answers
        run, before = process("eval", *GRID, "--output", str(path)), progress()
        wanted = before + draw.randint(300, 1800)
        while run.poll() is None and progress() < wanted:
            time.sleep(0.002)
        run.send_signal(signal.SIGKILL)
        if end_of(run)[0] == 0:
            break
        kills += 1
        finished = [result.config for result in read_results(path)] if path.exists() else []
        assert len(set(finished)) == len(finished)
    assert kills >= 2
    code, error = end_of(process("eval", *GRID, "--output", str(path)))
    assert code == 0, error
    assert without_times(path) == without_times(whole)
    assert not partial.exists()


def test_a_finished_file_is_left_as_it_is(succeed, whole):
    before = whole.read_bytes()
    out, err = succeed("eval", *GRID, "--output", str(whole))
    assert f"{NUM_RUNS} of {NUM_RUNS} runs are in" in err
    assert "lossless" in out
    assert whole.read_bytes() == before


def test_ctrl_c_leaves_a_valid_file_and_says_how_to_go_on(tmp_path):
    path = tmp_path / "results.jsonl"
    # so many problems that it cannot be done before it is interrupted
    run = process("eval", *GRID, "--problems", "400", "--output", str(path))
    while not path.with_name("results.jsonl.partial").exists():
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    code, error = end_of(run)
    assert code == 130
    assert f"of {NUM_RUNS} runs finished in {path}: the same command goes on from there" in error
    kept = len(path.with_name("results.jsonl.partial").read_bytes().splitlines()) if "with 0 " not in error else 0
    assert f"interrupted with {kept} of {400 * NUM_RUNS} answers kept, 0 of " in error
    assert "Traceback" not in error
    read_results(path)


def alive(session: int) -> list[Path]:
    """Return the processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended by now
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
            found += [path] if state != "Z" and of == str(session) else []
    return found


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
        code, error = end_of(process("eval", *given, *more, "--output", str(path)))
        assert code == 0, error
    one, two = ([line | {"provenance": None} for line in without_times(path)] for path in files)
    assert one == two
    assert any(line["answers"].get("turns") for line in one)


@pytest.mark.slow
def test_interrupted_all_end_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "results.jsonl"
    given = ("eval", "--problems", "24", "--max-new-tokens", "32", "--output", str(out))
    run = process(*given, "--workers", "2", start_new_session=True)
    partial = out.with_name("results.jsonl.partial")
    while run.poll() is None and not (partial.exists() and partial.stat().st_size > 2000):
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    code, error = end_of(run)
    assert code == 130
    assert "of 24 answers kept" in error
    assert "Traceback" not in error
    kept = partial.read_bytes().count(b"\n")
    assert kept > 0
    until = time.monotonic() + PATIENCE  # what clears up behind Python's processes ends after them
    while (left := alive(run.pid)) and time.monotonic() < until:
        time.sleep(0.1)
    assert left == [], "every process of the session has ended"
    code, error = end_of(process(*given, "--workers", "2"))
    assert code == 0, error
    assert len(without_times(out)[0]["answers"]["id"]) == 24


def killed(draft: str) -> Engine:
    """End as a process ends for which there is no memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def mistaken(draft: str) -> Engine:
    raise ValueError(f"{draft} cannot be read")


@pytest.mark.slow
def test_a_killed_worker_is_named_and_a_mistake_in_one_is_not_taken_for_its_end():
    run, tasks = config_of(problems=2), {"word_problems": Task("word_problems", (Problem("1", "a"), Problem("2", "b")))}
    for load, said in (
        (killed, r"^a worker ended before .* out of memory.* give fewer --workers; .* the same command goes on$"),
        (mistaken, "^bundled:worded cannot be read$"),
    ):
        workers = Workers(1, 1, load, [run], tasks)
        try:
            with pytest.raises(ValueError, match=said):
                list(workers.answers({run: [0, 1]}))
        finally:
            workers.close()


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
    check_parallelizable([config_of(), config_of(tree="static=2.2", num_speculative_tokens=None)], tasks)
    for config, task, said in (
        (config_of(engine="vllm"), tasks["word_problems"], "vLLM starts processes itself"),
        (config_of(task="sums"), HarnessTask("sums", ()), "sums is asked as a whole"),
    ):
        with pytest.raises(ValueError, match=said):
            check_parallelizable([config], {config.task: task})


def test_only_who_asks_a_server_needs_its_client():
    code = "import sys; sys.modules['httpx2'] = None; import cactus_decoding.lab.evaluation.runs.runner"
    subprocess.run([sys.executable, "-c", code], check=True)
