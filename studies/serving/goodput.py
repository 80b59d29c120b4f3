"""Goodput of vLLM's server under load: lossless at several draft lengths, and a rule.

    .venv-vllm/bin/python -m studies.serving.goodput measure RESULT
    .venv-vllm/bin/python -m studies.serving.goodput costs RESULT
    .venv/bin/python -m studies.serving.goodput page RESULT docs/studies/tables/serving.md

RESULT is results/goodput.json here.
`vllm bench serve` sends word problems at Poisson rates and counts as good the answers that are complete within a limit.
Beside what it measures stands what the simulation of `studies.planning` says, of the steps that its `check` recorded
and of step times of these servers: `costs` asks each for fixed numbers of answers at a time. Every server runs all the
time; in a round each way is measured at each rate, and each round begins with another way, so that what slows the
machine down for a while strikes all of them. Intervals are over rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding import zoo
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.core.rules import as_rule
from cactus_decoding.lab.evaluation.intervals import Interval, bootstrapped, resampled_medians
from scripts.pages import insert
from scripts.pages import table as as_table
from studies.planning.costs import StepTimes
from studies.planning.fleet import Workload, simulate

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1",
               "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
SMALL = ("--enforce-eager", "--max-model-len=256", "--gpu-memory-utilization=0.2", "--dtype=float32",
         "--generation-config=vllm", "--no-enable-prefix-caching", "--host=127.0.0.1")  # fmt: skip
MODEL = "word-problems"
CACTUS = "import sys; from cactus_decoding.cli import main; sys.exit(main())"
STEPS = Path(__file__).parents[1] / "planning" / "results" / "check.json"
KEPT = {
    "request_goodput": "goodput", "request_throughput": "throughput", "completed": "completed",
    "mean_e2el_ms": "e2el_mean_ms", "median_e2el_ms": "e2el_ms", "p95_e2el_ms": "e2el_p95_ms",
}  # fmt: skip
"""What is kept of a run, and under which name."""


@dataclass(frozen=True)
class Way:
    """How requests are answered.

    Attributes:
        name: for the table.
        num_speculative_tokens: of its server.
        config: the server's ``--additional-config``; servers of the same length and config are one.
        asked: keys of each request.
    """

    name: str
    num_speculative_tokens: int
    config: dict[str, Any]
    asked: dict[str, Any]


def ways_of(rule: str, lengths: Sequence[int], length: int) -> list[Way]:
    """Return lossless at several lengths, and a rule at one length."""
    return [
        *(Way(f"lossless ×{one}", one, {}, {}) for one in lengths),
        Way(f"{rule} ×{length}", length, {}, {"acceptance_rule": rule}),
    ]


@contextmanager
def serving(way: Way, folder: Path, *more: str) -> Iterator[tuple[str, subprocess.Popen]]:
    """Start a server for a way, and end it at the end; yields its address and its process. It logs into a folder.

    Args:
        way: whose server it is.
        folder: for its log.
        more: further options of vLLM's server.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-c",
        CACTUS,
        "serve",
        f"--num-speculative-tokens={way.num_speculative_tokens}",
        *SMALL,
        *more,
    ]
    if way.config:
        command += ["--additional-config", json.dumps(way.config)]
    log, url = folder / f"{port}.log", f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen([*command, f"--port={port}"], env=os.environ | ENVIRONMENT, stdout=output,
                                   stderr=output)  # fmt: skip
    try:
        while process.poll() is None:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)
        else:
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")
        yield url, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)


def run_bench(flags: Sequence[str], log: Path) -> None:
    """Do what `vllm bench serve` does; that looks for a distribution named vllm, which builds for the CPU are not."""
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    with log.open("w") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        serve.main(parser.parse_args(list(flags)))


def bench(url: str, way: Way, prompts: Path, given: Mapping[str, Any], seed: int, **asked: Any) -> dict[str, float]:
    """Return what `vllm bench serve` measures of one way.

    Args:
        url: of the server.
        way: how requests are answered.
        prompts: a file of them.
        given: ``tokens`` of an answer at most, ``limit_ms`` of a good one, and ``seconds`` that this takes about.
        seed: of the order and of arrivals.
        asked: further options, by their names.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "backend": "openai", "base-url": url, "endpoint": "/v1/completions", "model": MODEL,
            "tokenizer": str(zoo.path("target")), "dataset-name": "custom", "dataset-path": str(prompts),
            "seed": seed, "temperature": 1.0, "custom-output-len": given["tokens"],
            "result-dir": folder, "result-filename": "result.json",
            "extra-body": json.dumps({"vllm_xargs": way.asked} if way.asked else {}),
        } | {name.replace("_", "-"): value for name, value in asked.items()}  # fmt: skip
        flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        flags += [
            "--skip-chat-template",
            "--save-result",
            "--disable-tqdm",
            "--percentile-metrics",
            "tpot,e2el",
            "--metric-percentiles",
            "95",
            "--goodput",
            f"e2el:{given['limit_ms']:g}",
        ]
        log = Path(folder) / "log"
        process = get_context("fork").Process(target=run_bench, args=(flags, log))  # imports take longer than a run
        process.start()
        process.join(given["seconds"] + 600)
        if process.exitcode:
            raise RuntimeError(f"vllm bench serve ended with code {process.exitcode}:\n{log.read_text()[-4000:]}")
        result = json.loads((Path(folder) / "result.json").read_text())
    return {ours: result[theirs] for theirs, ours in KEPT.items()}


@contextmanager
def running(ways: Sequence[Way], max_batch: int) -> Iterator[tuple[dict[str, str], Path]]:
    """Start the servers of some ways, and end them at the end; yields their addresses by way, and a file of prompts."""
    from cactus_decoding.lab.evaluation.tasks.sources import parse_task

    if find_spec("pandas") is None:
        raise SystemExit("vllm bench serve reads its prompts with pandas: pip install pandas")
    import_module("vllm.benchmarks.serve")  # once, for all runs
    with tempfile.TemporaryDirectory() as name, ExitStack() as servers:
        folder = Path(name)
        prompts = folder / "prompts.jsonl"
        problems = islice(parse_task("word_problems").problems, 400)
        prompts.write_text("".join(json.dumps({"prompt": problem.prompt}) + "\n" for problem in problems))
        urls: dict[str, str] = {}
        for way in ways:
            key = json.dumps([way.num_speculative_tokens, way.config])
            if key not in urls:
                urls[key], _ = servers.enter_context(serving(way, folder, f"--max-num-seqs={max_batch}"))
        yield {way.name: urls[json.dumps([way.num_speculative_tokens, way.config])] for way in ways}, prompts


def measure(given: argparse.Namespace) -> None:
    """Measure every way at every rate, round by round, and write the result after each round."""
    ways = ways_of(str(as_rule(given.rule)), given.lengths, given.length)
    runs: list[dict[str, Any]] = []
    asked = {name: value for name, value in vars(given).items() if name != "run"}
    arguments = {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}
    with running(ways, given.max_batch) as (urls, prompts):
        for number in range(given.rounds):
            for rate in given.rates:
                turn = number % len(ways)
                count = max(2, round(rate * given.seconds))
                for way in [*ways[turn:], *ways[:turn]]:
                    found = bench(urls[way.name], way, prompts, asked, number, request_rate=rate, num_prompts=count)
                    runs.append({"way": way.name, "rate": rate, "round": number, **found})
                    print(f"round {number + 1}, {rate:g}/s, {way.name}: {found['goodput']:.2f} good/s, "
                          f"{found['e2el_ms']:.0f} ms an answer", flush=True)  # fmt: skip
            result = {
                "schema": 1, "kind": "vllm_goodput", "limit_ms": given.limit_ms, "max_batch": given.max_batch,
                "ways": [asdict(way) for way in ways], "runs": runs, "provenance": provenance(arguments),
            }  # fmt: skip
            write_atomically(given.output, as_json(result) + "\n")


def measure_costs(given: argparse.Namespace) -> None:
    """Add to a result how long answers take while fixed numbers of them are under way."""
    result = json.loads(given.result.read_text())
    ways = [Way(**way) for way in result["ways"]]
    asked = result["provenance"]["arguments"]
    costs: dict[str, dict[str, float]] = {way.name: {} for way in ways}
    with running(ways, result["max_batch"]) as (urls, prompts):
        for batch in given.batches:
            for way in ways:
                how = {"max_concurrency": batch, "num_prompts": max(24, 8 * batch)}
                found = bench(urls[way.name], way, prompts, asked, 0, request_rate="inf", **how)
                costs[way.name][str(batch)] = found["e2el_mean_ms"] / 1000
                print(f"{batch} at a time, {way.name}: {found['e2el_mean_ms']:.0f} ms an answer", flush=True)
    result["seconds_per_answer"] = costs
    write_atomically(given.result, as_json(result) + "\n")


def interval(values: Sequence[float]) -> Interval:
    """Return the median over rounds with its interval."""
    columns = np.array(values, dtype=np.float64)[:, None]
    return bootstrapped(float(np.median(columns)), resampled_medians(columns)[:, 0], len(values))


def table(result: dict[str, Any], steps: Mapping[str, Sequence[int]]) -> str:
    """Return a result as a table of Markdown, a row for each rate and way.

    Args:
        result: what was measured.
        steps: of answers, by a way's name.
    """
    limit = result["limit_ms"] / 1000
    head = "offered per second", "way", "good answers per second", "plan", "seconds, half", "plan", "95 %", "plan"
    rows = []
    for rate in dict.fromkeys(run["rate"] for run in result["runs"]):
        for way in (one["name"] for one in result["ways"]):
            runs = [run for run in result["runs"] if (run["rate"], run["way"]) == (rate, way)]
            planned = ["–"] * 3
            if way in steps:
                planned = predicted(steps[way], result["seconds_per_answer"][way], rate, result["max_batch"], limit)
            measured = [
                shown(interval([scale * run[key] for run in runs]))
                for key, scale in (("goodput", 1), ("e2el_ms", 0.001), ("e2el_p95_ms", 0.001))
            ]
            cells = [cell for pair in zip(measured, planned, strict=True) for cell in pair]
            rows.append([f"{rate:g}", way, *cells])
    return (
        f"Good answers are complete within {limit:g} s. Medians over rounds, with 95 % intervals where these are "
        f"enough to tell; beside them what the plan says.\n\n{as_table(head, rows, names=2)}"
    )


def predicted(
    steps: Sequence[int], seconds: Mapping[str, float], rate: float, max_batch: int, limit: float
) -> list[str]:
    """Return what a plan says of one replica: good answers per second, and seconds of half and of 95 % of them."""
    each = np.array(steps)
    times = StepTimes({int(batch): answer / each.mean() for batch, answer in seconds.items()})
    served = simulate(Workload(rate, each, 20_000), times, replicas=1, max_batch=max_batch)
    good = rate * float((served.latencies <= limit).mean())
    return [f"{value:.2f}" for value in (good, served.quantile(0.5), served.quantile(0.95))]


def page(given: argparse.Namespace) -> None:
    """Write the table into a page."""
    runs = json.loads(given.steps.read_text())["runs"]
    steps = {f"{as_rule(run['rule'])} ×{run['length']}": run["steps"] for run in runs}
    text = table(json.loads(given.result.read_text()), steps)
    write_atomically(given.page, insert(given.page.read_text(), "goodput", text))


def shown(value: Interval) -> str:
    """Return a value with its interval, where there is one."""
    ends = f" ({value.low:.2f} to {value.high:.2f})" if value.has_ends else ""
    return f"{value.value:.2f}{ends}"


def main() -> None:
    """Measure, or write the table into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("output", type=Path)
    one.add_argument("--rule", default="clamped:width=2")
    one.add_argument("--rates", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0])
    one.add_argument("--lengths", type=int, nargs="+", default=[2, 4, 6], help="of lossless")
    one.add_argument("--length", type=int, default=4, help="of the rule")
    one.add_argument("--rounds", type=int, default=6)
    one.add_argument("--seconds", type=float, default=30.0)
    one.add_argument("--tokens", type=int, default=96)
    one.add_argument("--limit-ms", type=float, default=1000.0, help="of a complete answer")
    one.add_argument("--max-batch", type=int, default=32, help="answers that share a step at most")
    one.set_defaults(run=measure)
    costs = commands.add_parser("costs")
    costs.add_argument("result", type=Path)
    costs.add_argument("--batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    costs.set_defaults(run=measure_costs)
    other = commands.add_parser("page")
    other.add_argument("result", type=Path)
    other.add_argument("page", type=Path)
    other.add_argument("--steps", type=Path, default=STEPS, help="what studies.planning.check recorded")
    other.set_defaults(run=page)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers end too
    given.run(given)


if __name__ == "__main__":
    main()
