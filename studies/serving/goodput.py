"""Goodput of vLLM's server under load: lossless at several draft lengths, and a rule.

    .venv-vllm/bin/python -m studies.serving.goodput --only-measure             answers per second within a limit
    .venv-vllm/bin/python -m studies.serving.goodput --only-measure --costs     adds step times of these servers
    .venv/bin/python -m studies.serving.goodput --only-render                   the table, from the result file

`vllm bench serve` sends word problems at Poisson rates and counts as good the answers that are complete within a limit.
Beside what it measures stands what the simulation of `studies.planning` says, of the steps that its `check` recorded
and of step times of these servers: `--costs` asks each for fixed numbers of answers at a time. Every server runs all
the time; in a round each way is measured at each rate, and each round begins with another way, so that what slows the
machine down for a while strikes all of them. Intervals are over rounds.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import islice, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.servers import CACTUS, running
from cactus_decoding import zoo
from cactus_decoding.core.rules import as_rule
from cactus_decoding.lab.evaluation.intervals import bootstrapped, resampled_medians
from scripts.pages import table
from scripts.results import asked, read, write
from studies.planning import check
from studies.planning.fleet import Workload, simulate, step_seconds
from studies.study import study

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1",
               "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip
SMALL = ("--enforce-eager", "--max-model-len=256", "--gpu-memory-utilization=0.2", "--dtype=float32",
         "--generation-config=vllm", "--no-enable-prefix-caching", "--host=127.0.0.1")  # fmt: skip
MODEL = "word-problems"
RESULTS = Path(__file__).with_name("results") / "goodput.json.gz"
KEPT = {
    "request_goodput": "goodput", "request_throughput": "throughput", "completed": "completed",
    "mean_e2el_ms": "e2el_mean_ms", "median_e2el_ms": "e2el_ms", "p95_e2el_ms": "e2el_p95_ms",
}  # fmt: skip
"""What is kept of a run, and under which name."""


@dataclass(frozen=True)
class Way:
    """How requests are answered: proposals of a server, which ways of the same number share, and keys of a request."""

    name: str
    num_speculative_tokens: int
    asked: dict[str, Any]


def ways_of(rule: str, lengths: Sequence[int], length: int) -> list[Way]:
    """Return lossless at several lengths, and a rule at one length."""
    lossless = [Way(f"lossless ×{one}", one, {}) for one in lengths]
    return [*lossless, Way(f"{rule} ×{length}", length, {"acceptance_rule": rule})]


def run_bench(flags: Sequence[str], log: Path) -> None:
    """Do what `vllm bench serve` does; that looks for a distribution named vllm, which builds for the CPU are not."""
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    serve.add_cli_args(parser)
    with log.open("w") as output, contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        serve.main(parser.parse_args(list(flags)))


def bench(url: str, way: Way, prompts: Path, given: Mapping[str, Any], seed: int, **more: Any) -> dict[str, float]:
    """Return what `vllm bench serve` measures of one way at an address.

    ``given`` are tokens of an answer at most, the milliseconds of a good one, and seconds that this takes about;
    ``seed`` is of the order and of arrivals.
    """
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "backend": "openai", "base-url": url, "endpoint": "/v1/completions", "model": MODEL,
            "tokenizer": str(zoo.path("target")), "dataset-name": "custom", "dataset-path": str(prompts),
            "seed": seed, "temperature": 1.0, "custom-output-len": given["tokens"],
            "result-dir": folder, "result-filename": "result.json",
            "extra-body": json.dumps({"vllm_xargs": way.asked} if way.asked else {}),
            "percentile-metrics": "tpot,e2el", "metric-percentiles": "95", "goodput": f"e2el:{given['limit_ms']:g}",
        } | {name.replace("_", "-"): value for name, value in more.items()}  # fmt: skip
        flags = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        flags += ["--skip-chat-template", "--save-result", "--disable-tqdm"]
        log = Path(folder) / "log"
        process = get_context("fork").Process(target=run_bench, args=(flags, log))  # imports take longer than a run
        process.start()
        process.join(given["seconds"] + 600)
        if process.exitcode:
            raise RuntimeError(f"vllm bench serve ended with code {process.exitcode}:\n{log.read_text()[-4000:]}")
        result = read(Path(folder) / "result.json")
    return {ours: result[theirs] for theirs, ours in KEPT.items()}


@contextmanager
def serving(ways: Sequence[Way], max_batch: int) -> Iterator[Callable[..., dict[str, float]]]:
    """Start the servers of some ways, and end them at the end; yields what asks them, as `bench` does."""
    from cactus_decoding.lab.evaluation.tasks.sources import parse_task

    if find_spec("pandas") is None:
        raise SystemExit("vllm bench serve reads its prompts with pandas: pip install pandas")
    import_module("vllm.benchmarks.serve")  # once, for all runs
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        prompts, urls = Path(folder) / "prompts.jsonl", dict[int, str]()
        problems = islice(parse_task("word_problems").problems, 400)
        prompts.write_text("".join(json.dumps({"prompt": problem.prompt}) + "\n" for problem in problems))
        for length in dict.fromkeys(way.num_speculative_tokens for way in ways):
            more = [f"--num-speculative-tokens={length}", f"--max-num-seqs={max_batch}"]
            server = servers.enter_context(running([*CACTUS, *SMALL, *more], environment=ENVIRONMENT))
            urls[length] = f"http://127.0.0.1:{server.port}"
        yield lambda way, *args, **more: bench(urls[way.num_speculative_tokens], way, prompts, *args, **more)


def measure(given: Namespace) -> dict[str, Any]:
    """Measure every way at every rate, round by round, and write the result after each round."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers end too
    ways, runs = ways_of(str(as_rule(given.rule)), given.lengths, given.length), list[dict[str, Any]]()
    if given.costs:
        return measured_costs(given, ways)
    result = {
        "limit_ms": given.limit_ms, "max_batch": given.max_batch, "ways": [asdict(way) for way in ways], "runs": runs,
    }  # fmt: skip
    with serving(ways, given.max_batch) as ask:
        for number, rate in product(range(given.rounds), given.rates):
            turn = number % len(ways)
            how = {"request_rate": rate, "num_prompts": max(2, round(rate * given.seconds))}
            for way in [*ways[turn:], *ways[:turn]]:
                found = ask(way, vars(given), number, **how)
                runs.append({"way": way.name, "rate": rate, "round": number, **found})
                print(f"round {number + 1}, {rate:g}/s, {way.name}: {found['goodput']:.2f} good/s, "
                      f"{found['e2el_ms']:.0f} ms an answer", flush=True)  # fmt: skip
            write(given.results, result, asked(given))
    return result


def measured_costs(given: Namespace, ways: Sequence[Way]) -> dict[str, Any]:
    """Return the stored result with how long answers take while fixed numbers of them are under way."""
    costs: dict[str, dict[str, float]] = {way.name: {} for way in ways}
    with serving(ways, given.max_batch) as ask:
        for batch, way in product(given.batches, ways):
            how = {"max_concurrency": batch, "num_prompts": max(24, 8 * batch), "request_rate": "inf"}
            taken = ask(way, vars(given), 0, **how)["e2el_mean_ms"]
            costs[way.name][str(batch)] = taken / 1000
            print(f"{batch} at a time, {way.name}: {taken:.0f} ms an answer", flush=True)
    return read(given.results) | {"seconds_per_answer": costs}


def shown_median(values: Sequence[float]) -> str:
    """Return the median over rounds with its interval."""
    columns = np.array(values, dtype=np.float64)[:, None]
    return bootstrapped(float(np.median(columns)), resampled_medians(columns)[:, 0], len(values)).shown(2)


def rates_and_ways(result: dict[str, Any], steps: Mapping[str, Sequence[int]]) -> str:
    """Return a row for each rate and way; ``steps`` are those of answers, by a way's name."""
    limit = result["limit_ms"] / 1000
    head = "offered per second", "way", "good answers per second", "plan", "seconds, half", "plan", "95 %", "plan"
    rows = []
    for rate, way in product(dict.fromkeys(run["rate"] for run in result["runs"]), result["ways"]):
        name = way["name"]
        runs = [run for run in result["runs"] if (run["rate"], run["way"]) == (rate, name)]
        planned = ["–"] * 3
        if name in steps:
            planned = predicted(steps[name], result["seconds_per_answer"][name], rate, result["max_batch"], limit)
        scales = {"goodput": 1, "e2el_ms": 0.001, "e2el_p95_ms": 0.001}
        measured = [shown_median([scale * run[key] for run in runs]) for key, scale in scales.items()]
        rows.append([f"{rate:g}", name, *(cell for pair in zip(measured, planned, strict=True) for cell in pair)])
    return (
        f"Good answers are complete within {limit:g} s. Medians over rounds, with 95 % intervals where these are "
        f"enough to tell; beside them what the plan says.\n\n{table(head, rows, names=2)}"
    )


def predicted(
    steps: Sequence[int], seconds: Mapping[str, float], rate: float, max_batch: int, limit: float
) -> list[str]:
    """Return what a plan says of one replica: good answers per second, and seconds of half and of 95 % of them."""
    each = np.array(steps)
    times = step_seconds({int(batch): answer / each.mean() for batch, answer in seconds.items()}, max_batch)
    served = simulate(Workload(rate, each, 20_000), times, replicas=1)
    good = rate * float((served.latencies <= limit).mean())
    return [f"{value:.2f}" for value in (good, served.quantile(0.5), served.quantile(0.95))]


def shown(result: dict[str, Any]) -> dict[str, str]:
    runs = read(check.RESULTS)["runs"]
    steps = {f"{as_rule(run['rule'])} ×{run['length']}": run["steps"] for run in runs}
    return {"goodput": rates_and_ways(result, steps)}


if __name__ == "__main__":
    study(
        __doc__, RESULTS, "studies/tables/serving.md", measure, shown,
        costs=False,
        rule="clamped:width=2",
        rates=[1.0, 2.0, 4.0, 8.0],
        lengths=([2, 4, 6], "of lossless"),
        length=(4, "of the rule"),
        rounds=6,
        seconds=30.0,
        tokens=96,
        limit_ms=(1000.0, "of a complete answer"),
        max_batch=(32, "answers that share a step at most"),
        batches=[1, 2, 4, 8, 16, 32],
    )  # fmt: skip
