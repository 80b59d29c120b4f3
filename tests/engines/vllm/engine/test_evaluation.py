"""`cactus eval --engine vllm` on one real engine: what it counts, that it resumes, and what it refuses beforehand."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_run import ENGINE_ENVIRONMENT
from support.tables import all_of

from cactus_decoding.cli import main
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.lab.evaluation.engines.vllm import VllmEngine, located
from cactus_decoding.lab.evaluation.run_config import grid, requests_of
from cactus_decoding.lab.evaluation.runs.results import RunResult, journal_of, opened, read_results
from cactus_decoding.lab.evaluation.runs.runner import answer_runs
from cactus_decoding.lab.evaluation.tasks.sources import parse_task

pytestmark = pytest.mark.engine

PROBLEMS, PROPOSALS = 8, 4
ENGINE_ARGUMENTS = json.dumps({"max_model_len": 256, "gpu_memory_utilization": 0.2})
TASK = parse_task("word_problems", PROBLEMS)
REQUESTS = requests_of(
    "vllm", {"max_new_tokens": 48}, rules=["lossless", "cactus:delta=1000.0"], lengths=[PROPOSALS], seeds=[0]
)
LOSSLESS, RELAXED = grid("bundled", "vllm", REQUESTS, tasks={TASK.name: PROBLEMS}, drafts=["bundled:draft"])
PROTECTED, LATE, FREE = (
    RELAXED.asking(policy=relaxation_policy(**policy))
    for policy in (
        {"protect": "digits|negation"},
        {"lossless_tokens": 1000},
        {"protect": "digits", "protect_threshold": 1.0, "relax_within": ["Answer:", "<never>"]},
    )
)
CONFIGS = [LOSSLESS, RELAXED, RELAXED.asking(budget=1.0), RELAXED.asking(budget=0.0), PROTECTED, LATE, FREE]


class Lasting(VllmEngine):
    """An engine that outlives a run, because starting one takes half a minute."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENGINE_ENVIRONMENT.items():
            environment.setenv(name, value)
        started = Lasting(*located("bundled", "bundled:draft", ENGINE_ARGUMENTS))
        yield started
        VllmEngine.close(started)


@pytest.fixture(scope="module")
def whole(engine: VllmEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "results.jsonl"
    evaluate(engine, path)
    return path


def evaluate(engine: VllmEngine, path: Path, stop_after: int | None = None) -> None:
    """Answer the runs, or end after so many answers as Ctrl-C does."""
    answers = 0

    def report(_: str) -> None:
        nonlocal answers
        answers += 1
        if answers == stop_after:
            raise KeyboardInterrupt

    with opened(path) as file:
        answer_runs(CONFIGS, {TASK.name: TASK}, lambda draft: engine, file, {"commit": "a"}, report)


def columns(result: RunResult) -> dict[str, list]:
    return {name: column for name, column in result.answers.items() if name != "seconds"}


def test_counts_fit_the_answers(whole: Path) -> None:
    for result in read_results(whole):
        count = result.column
        assert (count("steps") == count("recovered") + count("bonus")).all()
        assert (count("accepted") <= count("drafted")).all()
        assert (count("drafted") <= PROPOSALS * count("steps")).all()
        emitted, generated = count("accepted") + count("steps"), count("generated")
        assert ((generated <= emitted) & (emitted <= generated + PROPOSALS)).all()  # the rest lay behind the end
        assert (count("drafted") >= PROPOSALS * (count("steps") - 2)).all()  # the first step reads the prompt
        assert (count("seconds") > 0).all()


def test_what_nobody_counted_is_absent(whole: Path) -> None:
    for result in read_results(whole):
        assert not result.audited
        assert set(result.answers["relaxed"]) == ({0} if result.config.rule == "lossless" else {None})


def test_rules_and_budgets_act(whole: Path) -> None:
    lossless, relaxed, little, none, *_ = rates(whole)
    assert relaxed > little > lossless
    assert none == lossless  # without a nat it is the same, draw for draw


def test_protection_and_phases_act(whole: Path) -> None:
    lossless, relaxed, *_, protected, late, free = rates(whole)
    assert relaxed > protected > lossless
    assert late == lossless  # no answer is as long: the same, draw for draw
    assert free == relaxed
    labels = [result.config.label for result in read_results(whole)]
    assert "protecting digits|negation" in labels[4]


def rates(path: Path) -> list[float]:
    return [result.column("accepted").sum() / result.column("drafted").sum() for result in read_results(path)]


def test_a_run_that_was_interrupted_goes_on(engine: VllmEngine, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt):
        evaluate(engine, path, stop_after=len(CONFIGS) * (PROBLEMS // 2) + 2)
    assert not read_results(path)
    assert journal_of(path).exists()
    evaluate(engine, path)
    assert [columns(result) for result in read_results(path)] == [columns(result) for result in read_results(whole)]


@all_of(
    "arguments, said",
    [
        (["--rule", "typical"], "does not work in vLLM"),
        (["--draft", "ngram", "--num-speculative-tokens", "confidence"], "a fixed number of proposals"),
        (["--rule", "cactus:delta=1", "--protect", r"\d"], "no regular expression of its own"),
        (["--verification", "block"], "must be 'token'"),
        (["--min-p", "0.1"], "no min_p under speculation"),
        (["--rule", "clamped:width=1", "--budget", "1", "--expected-tokens", "9"], "neither paced nor counts per step"),
        (["--engine-args", "{"], "is no JSON"),
        (["--engine-args", '{"no_such": 1}'], "no argument no_such"),
        (["--engine-args", '{"model": "x"}'], "may not hold model"),
        (["--engine-args", '{"max_model_len": 16}'], "must be shorter than the target's 16 positions"),
        (["--target", "./nothing", "--draft", "bundled"], "there is no folder './nothing'"),
    ],
)
def test_mistakes_end_before_any_work(tmp_path, capsys, arguments: list[str], said: str) -> None:
    out = tmp_path / "results.jsonl"
    assert main(["eval", "--engine", "vllm", "--problems", "1", "--output", str(out), *arguments]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
    assert not out.exists() or not out.read_text()
