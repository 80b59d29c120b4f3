"""What the plan says beside what vLLM's CPU engine does, at several rates: regenerates docs/studies/planning.md.

    .venv-vllm/bin/python -m studies.planning.check --only-measure    measures: ten minutes on an idle machine
    .venv/bin/python -m studies.planning.check --only-render          writes table and picture, from the result file

One engine answers everything: first one problem at a time, whose steps are recorded; then batches that stay full, whose
steps are timed; then requests at random times. The first two are what a plan is made of, the third checks it.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding.lab.reporting.pictures import style_of
from scripts.pages import table
from studies.planning.fleet import Served, Workload, capacity, simulate, step_seconds
from studies.shown import Axes, picture
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "check.json.gz"
RUNS = (("lossless", 4), ("lossless", 6), ("clamped:width=2", 4))
BATCHES = (1, 2, 4, 8, 16, 32)
MAX_BATCH = 32
ROUNDS, STEPS = 3, 60
"""How often each batch size is timed, and for how many steps."""
MAX_TOKENS = 96
ENGINE = '{"max_model_len": 256, "gpu_memory_utilization": 0.2}'
SHARES = (0.5, 0.95)
"""Of the answers, whose latencies are compared."""
LOADS = (0.3, 0.6, 0.85)
"""Rates, as shares of what one replica can answer at most."""


class Engine:
    """vLLM's engine with the bundled pair, a rule of every request, and a number of proposals."""

    def __init__(self, rule: str, length: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        from cactus_decoding import zoo
        from cactus_decoding.engines.vllm import offline
        from cactus_decoding.lab.evaluation.engines.vllm import located

        target, draft, given = located(zoo.BUNDLED, zoo.BUNDLED, ENGINE)
        config = offline.engine_config(target, draft, length, given, max_num_seqs=MAX_BATCH)
        self.engine = offline.start_engine(config, offline.StepCounts())
        asked = {} if rule == "lossless" else {"acceptance_rule": rule}
        self.sampling = SamplingParams(
            temperature=1.0, max_tokens=MAX_TOKENS, extra_args=asked or None, output_kind=RequestOutputKind.FINAL_ONLY
        )
        self.asked = 0

    def add(self, prompt: str) -> str:
        """Begin a request, and return its name."""
        self.asked += 1
        self.engine.add_request(str(self.asked), prompt, self.sampling)
        return str(self.asked)

    def step(self) -> list[str]:
        """Take a step of the whole batch; return who is done."""
        return [output.request_id for output in self.engine.step() if output.finished]

    def steps_of(self, prompts: Sequence[str]) -> list[int]:
        """Return how many steps each answer takes, one after another."""
        found = []
        for prompt in prompts:
            self.add(prompt)
            found.append(0)
            while self.engine.has_unfinished_requests():
                self.step()
                found[-1] += 1
        return found

    def costs(self, prompts: Sequence[str]) -> tuple[dict[int, float], float]:
        """Return the seconds of a step by batch size, and what each request that joins adds.

        For each answer that ends another one begins, so that answers are at different places, as they are in service. A
        step's time is taken for that of its batch, and so much for each who joined: fitted by least squares.
        """
        rows, seconds, given = [], [], cycle(prompts)
        for batch in BATCHES * ROUNDS:
            missing = batch
            for number in range(STEPS):
                began = time.perf_counter()
                for prompt in islice(given, missing):
                    self.add(prompt)
                joined, missing = missing, len(self.step())
                if number > STEPS // 4:  # at first all begin at once
                    rows.append([*(batch == each for each in BATCHES), joined])
                    seconds.append(time.perf_counter() - began)
            while self.engine.has_unfinished_requests():
                self.step()
        fitted = np.linalg.lstsq(np.array(rows, dtype=float), np.array(seconds), rcond=None)[0].tolist()
        return dict(zip(BATCHES, fitted, strict=False)), max(0.0, fitted[-1])

    def serve(self, prompts: Sequence[str], rate: float, seed: int) -> list[float]:
        """Return the latencies of requests that come at random times."""
        arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, len(prompts)))
        began, came, latencies = time.perf_counter(), {}, {}
        waiting = list(zip(arrivals.tolist(), prompts, strict=True))[::-1]
        while waiting or self.engine.has_unfinished_requests():
            now = time.perf_counter() - began
            while waiting and waiting[-1][0] <= now:
                arrival, prompt = waiting.pop()
                came[self.add(prompt)] = arrival
            if not self.engine.has_unfinished_requests():
                time.sleep(max(0.0, waiting[-1][0] - (time.perf_counter() - began)))
                continue
            for name in self.step():
                latencies[name] = time.perf_counter() - began - came[name]
        return [latencies[name] for name in came]


def measure(given: Namespace) -> dict[str, Any]:
    """Answer everything, and return what was recorded, timed and served."""
    from cactus_decoding.zoo.word_problems import word_problems

    prompts = [each.prompt for each in islice(word_problems("test", seed=41), given.count)]
    found = []
    for rule, length in RUNS:
        engine = Engine(rule, length)
        engine.steps_of(prompts[:5])  # the first passes are slow
        steps = engine.steps_of(prompts)
        seconds, prompt = engine.costs(prompts)
        most = capacity(step_seconds(seconds, MAX_BATCH), statistics.fmean(steps), prompt)
        served = [
            {"load": load, "rate": load * most, "latencies": engine.serve(prompts, load * most, seed)}
            for seed, load in enumerate(LOADS)
        ]
        costs = {str(batch): value for batch, value in seconds.items()}
        run = {"rule": rule, "length": length, "steps": steps, "seconds": costs, "prompt": prompt, "served": served}
        found.append(run)
        print(f"{rule} ×{length}: {costs}, {statistics.fmean(steps):.2f} steps an answer, {most:.1f}/s", flush=True)
        engine.engine.engine_core.shutdown()
    return {"runs": found, "max_batch": MAX_BATCH}


def shown(content: dict[str, Any]) -> dict[str, str]:
    """Return the table, and the picture of the seconds within which half and 95 % of the answers are complete."""
    runs = [(run, [(each, planned(run, each["rate"], content["max_batch"])) for each in run["served"]])
            for run in content["runs"]]  # fmt: skip
    rows = []
    for run, found in runs:
        for each, plan in found:
            cells = [f"`{run['rule']}` ×{run['length']}", f"{100 * each['load']:.0f} %", f"{each['rate']:.1f}"]
            for share in SHARES:
                measured, told = float(np.quantile(each["latencies"], share)), plan.quantile(share)
                cells += [f"{told:.3f} s", f"{measured:.3f} s", f"{told / measured:.2f}"]
            rows.append(cells)

    def draw(axes: Axes, share: float) -> None:
        for turn, (run, found) in enumerate(runs):
            colour, rates = style_of(run["rule"]).colour, [each["rate"] for each, _ in found]
            measured = [float(np.quantile(each["latencies"], share)) for each, _ in found]
            label = f"{run['rule']} ×{run['length']}" if share == SHARES[0] else None
            line = ("-", "--", ":")[turn]
            axes.plot(rates, [plan.quantile(share) for _, plan in found], color=colour, linestyle=line, label=label)
            axes.plot(rates, measured, color=colour, linestyle="none", marker="os^"[turn], markerfacecolor="none")
        axes.set(title=f"{100 * share:g} % of the answers", xlabel="requests a second")
        axes.set_ylabel("complete within, seconds")
        axes.set_ylim(bottom=0)
        if share == SHARES[0]:
            axes.legend(fontsize=8, title="lines: plan; marks: measured", title_fontsize=8)

    times = ("half within, plan", "measured", "ratio", "95 % within, plan", "measured", "ratio")
    return {
        "check": table(("rule", "load", "requests/s", *times), rows),
        "pictures/planning/plan-and-measured.svg": picture(*(partial(draw, share=each) for each in SHARES),
                                                           size=(9.0, 3.6)),
    }  # fmt: skip


def planned(run: dict[str, Any], rate: float, max_batch: int) -> Served:
    """Return what the simulation says of a run at a rate, from its recorded steps and their times."""
    times = step_seconds({int(batch): seconds for batch, seconds in run["seconds"].items()}, max_batch)
    # many requests, so that the plan is not a matter of chance; the measured ones are as few as they are
    workload = Workload(rate, np.array(run["steps"]), 20_000)
    return simulate(workload, times, replicas=1, prompt=run["prompt"])


if __name__ == "__main__":
    study(__doc__, RESULTS, "studies/planning.md", measure, shown, count=(300, "problems"))
