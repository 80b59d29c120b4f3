"""`cactus eval`: result files that survive a kill, paired answers, exact costs, and errors before any work."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import pytest
from support.result_files import config_of

from cactus_decoding import load_pair, stream
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.runs.results import opened, read_results
from cactus_decoding.zoo.word_problems import word_problems

SMALL = ("--problems", "3", "--max-new-tokens", "24", "--threads", "1")
GRID = (*SMALL, "--rule", "lossless", "--rule", "cactus:delta=1", "--rule", "clamped:width=2.0",
        "--num-speculative-tokens", "0,4", "--seeds", "0,1", "--verification", "token")  # fmt: skip
NUM_RUNS = 2 * (1 + 3)

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")


def process(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-c", "import sys; from cactus_decoding.cli import main; sys.exit(main())", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


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
def pair():
    return load_pair()


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


def test_runs_share_problems_and_seeds(whole, pair):
    alone, lossless, *_ = read_results(whole)
    problem = next(word_problems("test", seed=0))
    response = stream(pair, problem.prompt, num_speculative_tokens=4, max_new_tokens=24, seed=seed_of(0, 0))
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


def test_a_finished_file_is_left_as_it_is(run, whole):
    before = whole.read_bytes()
    code, out, err = run("eval", *GRID, "--output", str(whole))
    assert code == 0, err
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


def test_other_files_are_refused_and_left_as_they_are(run, tmp_path, whole):
    path = tmp_path / "notes.jsonl"
    lines = whole.read_text().splitlines(keepends=True)
    longer = json.loads(lines[0])
    longer["answers"]["steps"].append(1)
    for content, problem in (
        ("hello", "this is not a result of cactus eval"),
        ('{"prompt": "a"}\n', "line 1: this is not a result of cactus eval"),
        (lines[0] + "{\n", "line 2: this is not JSON"),
        (lines[0].replace('"schema": 1', '"schema": 7', 1), "schema is 7"),
        (lines[0].replace('"task"', '"quest"', 1), "lacks"),
        (json.dumps(longer) + "\n", "must have 3 entries"),
    ):
        path.write_text(content)
        code, _, err = run("eval", *GRID, "--output", str(path))
        assert (code, path.read_text()) == (2, content)
        assert problem in err
    with opened(whole), pytest.raises(ValueError, match="another process"), opened(whole):
        pass
