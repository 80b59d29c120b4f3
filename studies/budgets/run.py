"""What budgets cost and buy on the bundled pair: regenerates the table and the picture of docs/studies/budgets.md.

    python -m studies.budgets.run                 everything: about an hour on one core, can be continued
    python -m studies.budgets.run --only-render   table and picture again, from the result file

Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from cactus_decoding import Budget, generate, load_pair
from cactus_decoding.core.files.jsonl import objects_in, whole_lines
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.lab.evaluation.score import Score
from cactus_decoding.lab.reporting.pictures import new_figure, to_svg
from cactus_decoding.zoo.word_problems import WordProblem, word_problems
from scripts.pages import ROOT, put
from scripts.pages import table as as_table
from scripts.results import parser

RESULTS, PAGE = Path(__file__).with_name("results") / "budgets.jsonl", ROOT / "docs" / "studies" / "budgets.md"
BUDGETS = (0.005, 0.02, 0.1, 0.5, 2.0, 5.0)
RULE = "clamped:width=2.0"


def settings(expected_tokens: int) -> list[dict[str, Any]]:
    """Return what is compared, each as the arguments of `generate` in JSON types."""
    found: list[dict[str, Any]] = [
        {"name": "lossless", "rule": "lossless", "nats": None},
        {"name": "lossless, block", "rule": "lossless", "nats": None, "verification": "block"},
        {"name": "unlimited", "rule": RULE, "nats": "inf"},
    ]
    paced = {"expected_tokens": expected_tokens}
    for nats in BUDGETS:
        found += [
            {"name": name, "rule": RULE, "nats": nats} | more for name, more in (("greedy", {}), ("paced", paced))
        ]
    return found


def run(setting: dict[str, Any], problems: list[WordProblem], pair: Any, seed: int) -> dict[str, Any]:
    """Answer the problems with one setting."""
    budget = None
    if setting["nats"] is not None:
        budget = Budget(nats=float(setting["nats"]), expected_tokens=setting.get("expected_tokens"))
    score, spent = Score(), []
    for i, problem in enumerate(track(problems, f"{setting['name']} {setting['nats'] or ''}")):
        verification = setting.get("verification", "token")
        response = generate(
            pair, problem.prompt, rule=setting["rule"], budget=budget, verification=verification, seed=seed + i
        )
        score.add(problem, response)
        spent.append(response.metrics.nats)
    max_nats = max(spent)
    if budget is not None and max_nats > budget.limit:
        raise AssertionError(f"a response spent {max_nats} nats of {budget.limit}")
    return {"setting": setting, "score": score.as_dict(), "most_nats": max_nats}


def table(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table."""
    lossless = results[0]["score"]
    head = (
        "setting", "budget, nats", "promised shift ≤", "right answers (95 %)", "shift from lossless",
        "acceptance_length", "nats per answer, mean (most)", "fallen back",
    )  # fmt: skip
    rows = []
    for result in results:
        setting, score, metrics = result["setting"], result["score"], result["score"]["metrics"]
        limit = None if setting["nats"] is None else float(setting["nats"])
        promised = "0" if limit is None else f"{Budget(nats=limit).shift:.3f}"
        budget = "–" if limit is None else "none" if math.isinf(limit) else f"{limit:g}"
        low, high = score["accuracy_interval"]
        spent = "0" if limit is None else f"{metrics['nats'] / score['answers']:.4f} ({result['most_nats']:.4f})"
        fallen = f"{metrics['fell_back'] / metrics['metered']:.1%}" if metrics["metered"] else "–"
        right = f"{score['right']}/{score['answers']} ({low:.3f} to {high:.3f})"
        shift = f"{(score['right'] - lossless['right']) / score['answers']:+.3f}"
        length = f"{metrics['acceptance_length']:.3f}"
        rows.append([setting["name"], budget, promised, right, shift, length, spent, fallen])
    return as_table(head, rows)


def picture(results: list[dict[str, Any]]) -> str:
    """Draw score and acceptance length against the budget, greedy and paced, with 95 % intervals of the score."""
    figure = new_figure((7, 6))
    top, bottom = figure.subplots(2, 1, sharex=True)
    lossless = results[0]["score"]
    top.axhspan(*lossless["accuracy_interval"], color="0.9", label="lossless, 95 %")
    top.axhline(lossless["accuracy"], color="0.4", lw=1)
    bottom.axhline(lossless["metrics"]["acceptance_length"], color="0.4", lw=1, label="lossless")
    block = results[1]["score"]["metrics"]["acceptance_length"]
    bottom.axhline(block, color="0.4", lw=1, ls=":", label="lossless, block verification")
    promised = [lossless["accuracy"] - Budget(nats=nats).shift for nats in BUDGETS]
    top.plot(BUDGETS, promised, color="0.4", ls="--", label="lowest score that the budget allows")
    for name, colour, marker in (("greedy", "#d55e00", "o"), ("paced", "#0072b2", "s")):
        found = [r for r in results if r["setting"]["name"] == name]
        scores = [r["score"]["accuracy"] for r in found]
        below, above = zip(*(r["score"]["accuracy_interval"] for r in found), strict=True)
        error = [
            [s - b for s, b in zip(scores, below, strict=True)],
            [a - s for s, a in zip(scores, above, strict=True)],
        ]
        shifted = [nats * (0.97 if name == "greedy" else 1.03) for nats in BUDGETS]  # so that bars do not overlap
        top.errorbar(shifted, scores, error, color=colour, marker=marker, capsize=3, label=name)
        lengths = [r["score"]["metrics"]["acceptance_length"] for r in found]
        bottom.plot(BUDGETS, lengths, color=colour, marker=marker, label=name)
    top.set(ylabel="right answers", ylim=(0, 1.02))
    bottom.set(xlabel="budget per answer, nats", ylabel="acceptance_length", xscale="log")
    top.legend(fontsize=8, loc="lower left")
    bottom.legend(fontsize=8)
    return to_svg(figure)


def shown(results: list[dict[str, Any]]) -> dict[str, str]:
    return {"budget study": table(results), "pictures/budgets.svg": picture(results)}


def read(path: Path) -> list[dict[str, Any]]:
    """Return the finished settings; a last line that was cut off is dropped."""
    data = whole_lines(path.read_bytes()) if path.exists() else b""
    return [value for _, _, value in objects_in(data, path)]


def main() -> None:
    """Run what is missing, then render."""
    made = parser(
        __doc__,
        problems=(500, "held-out problems of each setting"),
        seed=(0, "of the problems; problem i is answered with seed + i"),
        expected_tokens=(60, "length that pacing spreads a budget over"),
        results=(RESULTS, "result file, JSON Lines"),
        page=(PAGE, "page whose table is replaced"),
        only_render=False,
    )
    given = made.parse_args()
    torch.set_num_threads(1)
    arguments = {"problems": given.problems, "split": "test", "seed": given.seed}
    arguments |= {"temperature": 1.0, "num_speculative_tokens": 6}  # the defaults of `generate`
    wanted = settings(given.expected_tokens)
    stored = (result for result in read(given.results) if result["provenance"]["arguments"] == arguments)
    results = {json.dumps(result["setting"]): result for result in stored}
    missing = [setting for setting in wanted if json.dumps(setting) not in results]
    if missing and given.only_render:
        made.error(f"{given.results} lacks {len(missing)} of {len(wanted)} settings; run without --only-render")
    pair = load_pair(draft="bundled:draft") if missing else None
    problems = list(islice(word_problems("test", given.seed), given.problems))
    for setting in missing:
        result = run(setting, problems, pair, given.seed)
        results[json.dumps(setting)] = result | {"provenance": provenance(arguments)}
        done = [results[key] for key in map(json.dumps, wanted) if key in results]
        write_atomically(given.results, "".join(as_json(each) + "\n" for each in done))
    put(given.page, shown([results[json.dumps(setting)] for setting in wanted]))


if __name__ == "__main__":
    main()
