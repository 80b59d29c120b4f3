"""What a memory of rejections keeps of a rule's gain: regenerates the table of docs/recurring.md.

python -m studies.importance.recurring                 200 problems under every setting; minutes
python -m studies.importance.recurring --only-render   the table again, from the result file
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from cactus_decoding import Request, parse_rule
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.pages import columns, with_ends
from scripts.results import asked
from studies.importance.run import ANSWERED, numbers
from studies.study import answer, study

RESULTS = Path(__file__).with_name("results") / "recurring.json.gz"
RULES = {0.0: ("relaxed_greedy:margin=0", "relaxed_greedy:margin=1.2"), 1.0: ("lossless", "ensemble:weight=1")}
"""By temperature, what is lossless and what is relaxed: a margin of 1.2 nats is a ratio of 0.3."""
MEMORIES: tuple[dict[str, Any], ...] = ({}, {"recurring": 1}, {"recurring": 2})


def measure(given: Namespace) -> dict[str, Any]:
    """Answer problems under every rule and memory."""
    task, configs = parse_task(ANSWERED, 1).name, {}
    for temperature, (lossless, relaxed) in RULES.items():
        request = Request(seed=0, sampling=SamplingParams(temperature), num_speculative_tokens=12)
        plain = RunConfig(task, "bundled", "bundled:worded", problems=given.problems, request=request)
        configs[f"{temperature:g}, lossless"] = plain.asking(rule=parse_rule(lossless))
        for memory in MEMORIES:
            gate = {"recurring_ratio": 0.3} if memory and temperature else {}  # the margin is a gate too
            policy = relaxation_policy(**memory, **gate)
            name = f"{temperature:g}, {relaxed} {policy}".strip()
            configs[name] = plain.asking(rule=parse_rule(relaxed), policy=policy)
    runs = answer(given.answers, list(configs.values()), asked(given), audited=False)
    return {"settings": {name: numbers(runs[config]) for name, config in configs.items()}}


def shown(result: dict[str, Any]) -> dict[str, str]:
    heads = {
        "temperature, rule, memory": lambda row: row[0],
        "right, %": lambda row: with_ends(row[1]["score"], 1, 100),
        "accepted per step of 12": lambda row: with_ends(row[1]["accepted_per_step"], unknown=" (too few to tell)"),
    }
    return {"recurring": columns(result["settings"].items(), heads)}


if __name__ == "__main__":
    kept = Path("recurring_results.jsonl")
    study(__doc__, RESULTS, "recurring.md", measure, shown, problems=200, answers=(kept, "where answers are kept"))
