"""What the papers of deployed rules report, in shape, on the bundled pair: docs/studies/tables/deployed.md.

    python -m studies.rules.papers                 answers problems under each rule, and renders; half an hour
    python -m studies.rules.papers --only-render   the table again, from the result file

The draft words things differently (`bundled:worded`). Each rule has the knobs of its paper, or of its published code,
where these mean the same here. Regret is the log-probability that kept tokens give up against the likeliest, per token.
Intervals are of 95 %, over problems; differences from the baseline (greedy or lossless) are on the same problems.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cactus_decoding import Budget, Pair, Request, load_pair
from cactus_decoding.core.generate import stream
from cactus_decoding.core.rules.relaxed_greedy import given_up
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.lab.evaluation.intervals import (
    Interval,
    bootstrapped,
    paired_difference,
    proportion,
    resampled_sums,
)
from cactus_decoding.lab.evaluation.run_config import seed_of
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import Task
from scripts.pages import table
from studies.study import study

RESULTS, PAGE = Path(__file__).with_name("results") / "papers.json.gz", "studies/tables/deployed.md"
GREEDY, SAMPLED = SamplingParams(temperature=0.0), SamplingParams()
ASD = Budget(nats=8, max_relaxed=2)
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "greedy": ({"sampling": GREEDY}, ""),
    "`fly`": ({"sampling": GREEDY, "verification": "fly"}, "FLy: 10.9 to 12.4 tokens a step, score kept to 99 %"),
    "`fly:threshold=0`": ({"sampling": GREEDY, "verification": "fly:threshold=0"}, "to 12.8, score kept to 97.7 %"),
    "`fly:window=1`": ({"sampling": GREEDY, "verification": "fly:window=1"}, "(without a window: to 15.6, 93.7 %)"),
    "`fly:window=5,behind=6`": ({"sampling": GREEDY, "verification": "fly:window=5,behind=6"}, "(its code's counts)"),
    "`mars:ratio=0.9,logits=raw`": (
        {"sampling": GREEDY, "rule": "mars:ratio=0.9,logits=raw"}, "MARS: 5.6 to 7.2 tokens a step"),
    "`mars:ratio=0.9`": ({"sampling": GREEDY, "rule": "mars:ratio=0.9"}, "(logits from their mean)"),
    "`relaxed_greedy:margin=2`, 8 nats, 2 a step": (
        {"sampling": GREEDY, "rule": "relaxed_greedy:margin=2", "budget": ASD}, "ASD: 3.9 to 4.2 accepted a step"),
    "`relaxed_greedy:margin=0.25,per=remaining`, the same": (
        {"sampling": GREEDY, "rule": "relaxed_greedy:margin=0.25,per=remaining", "budget": ASD}, "(ASD's margin)"),
    "`big_little:rollback=5`": (
        {"sampling": GREEDY, "rule": "big_little:rollback=5"}, "BiLD: up to 2.1 times as fast, little lost"),
    "`big_little:rollback=5`, drafts by `confidence:threshold=0.6,unsure=discard`": (
        {"sampling": GREEDY, "rule": "big_little:rollback=5",
         "num_speculative_tokens": "confidence:max_draft_tokens=12,threshold=0.6,unsure=discard"}, "(its fallback)"),
    "lossless": ({"sampling": SAMPLED}, ""),
    "`fly`, sampling": ({"sampling": SAMPLED, "verification": "fly"}, "(vLLM's)"),
    "`fly:window=5,behind=6,test=draws`, sampling": (
        {"sampling": SAMPLED, "verification": "fly:window=5,behind=6,test=draws"}, "(its code's)"),
    "`lenience:lenience=0.5`": ({"sampling": SAMPLED, "rule": "lenience:lenience=0.5"}, "to compare cascades with"),
    **{
        f"`{rule}`": ({"sampling": SAMPLED, "rule": rule}, says)
        for rule, says in {
            "cascade:alpha=0.1": "cascades: more quality at equal cost than lossy speculation",
            "cascade:alpha=0.1,defer=diff": "",
            "cascade:alpha=0.1,defer=chow": "",
            "token_cascade:alpha=0.1,version=v1": "",
            "token_cascade:alpha=0.1,version=v2": "",
            "token_cascade:alpha=0.5": "cascades: V3 the best of all",
            "token_cascade:alpha=0.5,coupling=paper": "(its coupling)",
            "fuzzy:threshold=0.3": "fuzzy: faster, some 2 points lost",
            "fuzzy:threshold=0.3,divergence=js_code,closed=draw": "(its code's)",
            "kl_gate:threshold=0.5": "KL gate: 10.6 to 17.4 tokens a step, some 2 points lost",
        }.items()
    },
}  # fmt: skip
"""Of each way to answer its settings, and what its paper reports."""


COUNTS = ("right", "tokens", "steps", "accepted", "relaxed", "regret")


def answered(pair: Pair, task: Task, problems: int, settings: dict[str, Any], proposals: int) -> dict[str, list[float]]:
    """Return the counts of the answer to each of the first problems."""
    request = Request(**({"num_speculative_tokens": proposals, "stop": task.stop} | settings))
    found: dict[str, list[float]] = {name: [] for name in COUNTS}
    for place, problem in enumerate(task.problems[:problems]):
        response, regret = stream(pair, problem.prompt, request.replace(seed=seed_of(0, place))), 0.0
        for outcome in response:
            for visit in outcome.visits[: len(outcome.path)]:
                row = outcome.rows.untempered_of(visit.node)
                regret += given_up(row, torch.tensor([visit.token_id])).item()
        metrics, right = response.metrics, bool(task.is_right(problem, response.text))
        counts = right, len(response.token_ids), metrics.steps, metrics.accepted, metrics.relaxed, round(regret, 6)
        for name, value in zip(COUNTS, counts, strict=True):
            found[name].append(value)
    return found


def measure(given: Namespace) -> dict[str, Any]:
    """Return every number of the table; each way's sums are printed when they are known."""
    task, pair = parse_task("word_problems:split=validation", None), load_pair(draft="bundled:worded", kept_prompts=0)
    ways: dict[str, Any] = {}
    for name, (settings, _) in WAYS.items():
        ways[name] = answered(pair, task, given.problems, settings, given.proposals)
        print(name, {each: sum(values) for each, values in ways[name].items()}, flush=True)
    return {"problems": len(ways["greedy"]["right"]), "proposals": given.proposals, "ways": ways}


def quotient(counts: np.ndarray[Any, Any], over: tuple[int, ...], under: tuple[int, ...]) -> Interval:
    """Return a product of sums over another with its interval: of columns of counts, ``[problems, columns]``."""
    sums, drawn = counts.sum(0), resampled_sums(counts)
    value, resampled = (each[..., over].prod(-1) / each[..., under].prod(-1) for each in (sums, drawn))
    return bootstrapped(float(value), resampled, len(counts))


def shown(result: dict[str, Any]) -> dict[str, str]:
    """Return what each way brought."""
    head = (
        "rule", "its paper", "right, %", "against its baseline, points", "tokens a step", "times the baseline's",
        "relaxed", "nats given up a token",
    )  # fmt: skip
    rows = []
    for name, found in result["ways"].items():
        settings, says = WAYS[name]
        base = result["ways"]["greedy" if settings["sampling"] == GREEDY else "lossless"]
        columns = "tokens", "steps", "relaxed", "regret"
        counts = np.array([*(found[each] for each in columns), base["tokens"], base["steps"]], dtype=float).T
        right, differences = sum(found["right"]), np.subtract(found["right"], base["right"], dtype=float)
        numbers = [
            proportion(right, result["problems"]).shown(0, scale=100),
            "–" if found is base else paired_difference(differences).shown(0, scale=100),
            quotient(counts, (0,), (1,)).shown(2),
            "–" if found is base else quotient(counts, (0, 5), (1, 4)).shown(2),
            f"{sum(found['relaxed']) / sum(found['tokens']):.3f}",
            quotient(counts, (3,), (0,)).shown(4),
        ]
        rows.append([name, says or "–", *numbers])
    return {"deployed": table(head, rows, names=2)}


if __name__ == "__main__":
    study(__doc__, RESULTS, PAGE, measure, shown, problems=100, proposals=12)
