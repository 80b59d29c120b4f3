"""What a memory of rejections keeps of a rule's gain: regenerates the table of docs/recurring.md.

python -m studies.importance.recurring                 200 problems under every setting; minutes
python -m studies.importance.recurring --only-render   the table again, from the result file
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from cactus_decoding import Request, parse_rule
from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import opened
from cactus_decoding.lab.evaluation.runs.runner import run
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.pages import insert, table
from studies.importance.run import ANSWERED, ROOT, _number, numbers

RULES = {0.0: ("relaxed_greedy:margin=0", "relaxed_greedy:margin=1.2"), 1.0: ("lossless", "ensemble:weight=1")}
"""By temperature, what is lossless and what is relaxed: a margin of 1.2 nats is a ratio of 0.3."""
MEMORIES: tuple[dict[str, Any], ...] = ({}, {"recurring": 1}, {"recurring": 2})


def settings(problems: int) -> dict[str, RunConfig]:
    task, made = parse_task(ANSWERED, 1).name, {}
    for temperature, (lossless, relaxed) in RULES.items():
        request = Request(seed=0, sampling=SamplingParams(temperature), num_speculative_tokens=12)
        plain = RunConfig(task, "bundled", "bundled:worded", problems=problems, request=request)
        made[f"{temperature:g}, lossless"] = plain.asking(rule=parse_rule(lossless))
        for memory in MEMORIES:
            gate = {"recurring_ratio": 0.3} if memory and temperature else {}  # the margin is a gate too
            policy = relaxation_policy(**memory, **gate)
            made[f"{temperature:g}, {relaxed} {policy}".strip()] = plain.asking(rule=parse_rule(relaxed), policy=policy)
    return made


def measure(given: argparse.Namespace) -> None:
    options.prepare(1, small=True)
    configs, task = settings(given.problems), parse_task(ANSWERED, given.problems)
    named = {name: str(value) for name, value in vars(given).items() if not isinstance(value, Path)}
    with opened(given.results) as file:
        with counting("Answering", sum(config.problems for config in configs.values())) as progress:
            done = count(1)
            load = partial(load_engine, "transformers", "bundled", audited=False, engine_arguments=None)
            run(list(configs.values()), {task.name: task}, load, file, provenance(named),
                lambda remark: progress(next(done), remark))  # fmt: skip
        results = {result.config: result for result in file.results}
    found = {name: numbers(results[config]) for name, config in configs.items()}
    write_atomically(given.out, as_json({"settings": found, "provenance": provenance(named)}, indent=1) + "\n")


def render(result: dict[str, Any]) -> str:
    found = result["settings"].items()
    rows = [[name, _number(each["score"], 100, 1), _number(each["accepted_per_step"], 1, 2)] for name, each in found]
    return table(("temperature, rule, memory", "right, %", "accepted per step of 12"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--results", type=Path, default=Path("recurring_results.jsonl"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "recurring.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/recurring.md")
    parser.add_argument("--only-render", action="store_true")
    given = parser.parse_args()
    if not given.only_render:
        measure(given)
    text = insert(given.page.read_text(), "recurring", render(json.loads(given.out.read_text())))
    write_atomically(given.page, text)


if __name__ == "__main__":
    main()
