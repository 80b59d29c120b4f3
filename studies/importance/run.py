"""Learned importance beside hand-made protection: regenerates the tables of docs/importance.md.

    python -m studies.importance.run                      the bundled file, 1,000 problems; can be interrupted
    python -m studies.importance.run --only-render        the tables again, from the result file

How important a position may be is chosen on validation problems of one seed so that as many proposals are accepted as
with digits protected; answers are to validation problems of another seed. The same command goes on where it was killed.
"""

from __future__ import annotations

import argparse
import json
import re
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cactus_decoding import Lossless, Pair, Request, audit, load_pair, parse_rule, stream
from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, write_atomically
from cactus_decoding.core.policy.importance import Importance, ImportanceLimit, read_importance
from cactus_decoding.core.policy.protection import PATTERNS, Protection, may_relax
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.transformers.cached_model import vocabulary_size
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.intervals import bootstrapped, paired_difference, proportion, resampled_sums
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.runs.results import RunResult, opened
from cactus_decoding.lab.evaluation.runs.runner import pending, run
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.pages import insert, table

ROOT = Path(__file__).resolve().parents[2]
RULES = ("clamped:width=3", "cactus:delta=1")
DIGITS = Protection("digits", 0.01)
MATCHING, ANSWERED = "word_problems:split=validation,seed=1", "word_problems:split=validation"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--importance", default="bundled:worded", help="a file of cactus learn-importance")
    parser.add_argument("--draft", default="bundled:worded", help="the draft that it was learned with")
    parser.add_argument("--problems", type=int, default=1000, help="that are answered under every setting")
    parser.add_argument("--matching", type=int, default=100, help="problems on which the limits are chosen")
    parser.add_argument("--results", type=Path, default=Path("importance_results.jsonl"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results") / "importance.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/studies/tables/importance.md")
    parser.add_argument("--only-render", action="store_true")
    given = parser.parse_args()
    if not given.only_render:
        measure(given)
    write_atomically(given.page, insert(given.page.read_text(), "measured", render(json.loads(given.out.read_text()))))


def measure(given: argparse.Namespace) -> None:
    """Answer problems under every setting, and write the result file."""
    options.prepare(1, small=True)
    importance = read_importance(given.importance)
    limits = matched_limits(given.draft, importance, given.matching)
    configs = settings(given.draft, given.importance, limits, given.problems)
    task = parse_task(ANSWERED, given.problems)
    named = {name: str(value) for name, value in vars(given).items() if not isinstance(value, Path)}
    with opened(given.results) as file:
        todo = pending(list(configs.values()), file.results)
        with counting("Answering", sum(config.problems for config in todo)) as progress:
            done = count(1)
            load = partial(load_engine, "transformers", "bundled", audited=False, engine_arguments=None)
            run(list(configs.values()), {task.name: task}, load, file, provenance(named),
                lambda remark: progress(next(done), remark))  # fmt: skip
        results = {result.config: result for result in file.results}
    chosen = {name: results[config] for name, config in configs.items()}
    result = {
        "schema": 1,
        "kind": "importance",
        "learned": dict(importance.about),
        "found": found_by_itself(importance),
        "limits": limits,
        "settings": {name: numbers(each) for name, each in chosen.items()},
        "against_digits": {
            name: compared(each, chosen[f"{name.partition(' ')[0]} digits"])
            for name, each in chosen.items()
            if name != "lossless" and not name.endswith("digits")
        },
        "provenance": provenance(named),
    }
    write_atomically(given.out, as_json(result, indent=1) + "\n")


def settings(draft: str, importance: str, limits: dict[str, float], problems: int) -> dict[str, RunConfig]:
    """Return every setting by its name: the rule, then what keeps it away."""
    plain = RunConfig(parse_task(ANSWERED, 1).name, "bundled", draft, problems=problems, request=Request(seed=0))
    made = {"lossless": plain}
    for rule in RULES:
        policies = {
            "unprotected": RelaxationPolicy(),
            "digits": RelaxationPolicy(DIGITS),
            "matched": RelaxationPolicy(limit=ImportanceLimit(importance, limits[rule])),
            "default": RelaxationPolicy(limit=ImportanceLimit(importance)),
            "scaled": RelaxationPolicy(limit=ImportanceLimit(importance, 1.0, scale=True)),
        }
        for name, policy in policies.items():
            made[f"{rule} {name}"] = plain.asking(rule=parse_rule(rule), policy=policy)
    return made


def matched_limits(draft: str, importance: Importance, problems: int) -> dict[str, float]:
    """Return, for each rule, the limit of importance with the acceptance that protected digits leave.

    Acceptance is exact at the positions of lossless answers: of the rule where it may judge, of lossless elsewhere.
    """
    pair = load_pair("bundled", draft)
    target, drafted = rows_of_lossless_answers(pair, problems)
    words = Vocabulary.of(pair.tokenizer, vocabulary_size(pair.target.model))
    values = importance.fit(words)(target, drafted, [])
    allowed = may_relax(target[:, DIGITS.mask(words)].sum(-1), DIGITS.threshold)
    lossless = audit(Lossless(), target, drafted).acceptance
    limits = {}
    for rule in RULES:
        gain = audit(parse_rule(rule), target, drafted).acceptance - lossless
        by_importance = values.argsort()
        gained = gain[by_importance].cumsum(0)
        place = int((gained < gain[allowed].sum()).sum().clamp(max=len(gain) - 1))
        limits[rule] = float(f"{values[by_importance[place]].item():.4g}")
    return limits


def rows_of_lossless_answers(pair: Pair, problems: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both models' rows at the positions that lossless answers visit, in float64."""
    target, drafted = [], []
    for place, problem in enumerate(parse_task(MATCHING, problems).problems):
        for outcome in stream(pair, problem.prompt, seed=seed_of(1, place)):
            for visit in outcome.visits:
                assert visit.draft_probs is not None
                target.append(visit.target_probs.double())
                drafted.append(visit.draft_probs.double())
    rows = torch.stack(target), torch.stack(drafted)
    return rows[0] / rows[0].sum(-1, keepdim=True), rows[1] / rows[1].sum(-1, keepdim=True)


def found_by_itself(importance: Importance, top: int = 20) -> dict[str, Any]:
    """Say how many of the tokens that matter most are digits or operators, and how many of all tokens are."""
    pair = load_pair("bundled", "ngram")
    words = Vocabulary.of(pair.tokenizer, len(importance.target_weights))
    search = re.compile(PATTERNS["numbers_and_operators"]).search
    chosen = [bool(search(text)) for text in words.texts]
    result: dict[str, Any] = {"numbers_and_operators_among_all": sum(chosen) / len(chosen)}
    for side in ("target", "draft"):
        order = getattr(importance, f"{side}_weights").argsort(descending=True).tolist()
        result[f"numbers_and_operators_among_top_{top}_of_{side}"] = sum(chosen[i] for i in order[:top]) / top
        for end, some in (("most", order[:top]), ("least", order[: -top - 1 : -1])):
            result[f"{side}_{end}"] = [words.texts[i] for i in some]
    return result


def numbers(result: RunResult) -> dict[str, Any]:
    """Return a setting's score and what it accepts, with 95 % intervals over problems."""
    right, steps, accepted = (result.column(name) for name in ("right", "steps", "accepted"))
    drawn = resampled_sums(np.stack([accepted, steps], axis=1))
    return {
        "setting": result.config.as_dict(),
        "score": list(proportion(float(right.sum()), len(right))),
        "accepted_per_step": list(
            bootstrapped(float(accepted.sum() / steps.sum()), drawn[:, 0] / drawn[:, 1], len(steps))
        ),
        "problems": len(right),
    }


def compared(result: RunResult, digits: RunResult) -> dict[str, Any]:
    """Return the differences to protected digits on the same problems and seeds."""
    columns = [each.column(name) for each in (result, digits) for name in ("accepted", "steps")]
    sums = resampled_sums(np.stack(columns, axis=1))
    total = [column.sum() for column in columns]
    return {
        "score": list(paired_difference(result.column("right") - digits.column("right"))),
        "accepted_per_step": list(
            bootstrapped(
                float(total[0] / total[1] - total[2] / total[3]),
                sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3],
                len(columns[0]),
            )
        ),
    }


def render(result: dict[str, Any]) -> str:
    """Return the tables of the page."""
    fit, found = result["learned"]["fit"], result["found"]
    value, low, high = fit["auc"]
    lines = [
        f"Learned from {fit['positions']:,} rejected proposals in {fit['problems']:,} problems: keeping the proposal "
        f"spoils {100 * fit['worse']:.1f} % of the continuations (and mends {100 * fit['better']:.1f} %, which is the "
        f"target's own chance). ROC AUC on problems that it was not fitted to: {value:.3f} ({low:.3f} to {high:.3f}).",
        "",
        f"Digits and operators are {100 * found['numbers_and_operators_among_all']:.0f} % of the vocabulary, "
        f"{100 * found['numbers_and_operators_among_top_20_of_target']:.0f} % of the twenty tokens with the greatest "
        f"weights in the target's row and {100 * found['numbers_and_operators_among_top_20_of_draft']:.0f} % in the "
        "draft's.",
        "",
    ]
    head = "rule", "relaxed", "right, %", "accepted per step", "right, to digits", "accepted, to digits"
    rows = []
    for name, each in result["settings"].items():
        rule, _, how = name.partition(" ")
        against = result["against_digits"].get(name)
        limit = result["limits"].get(rule, 0)
        kinds = {
            "": "nothing",
            "unprotected": "everywhere",
            "digits": "not at digits above 0.01",
            "matched": f"importance ≤ {limit:g}",
            "default": "importance ≤ 0.2",
            "scaled": "scaled by importance",
        }
        cells = [rule, kinds[how], _number(each["score"], 100, 1), _number(each["accepted_per_step"], 1, 2)]
        cells += ["", ""] if against is None else [
            _number(against["score"], 100, 1, sign=True), _number(against["accepted_per_step"], 1, 2, sign=True)
        ]  # fmt: skip
        rows.append(cells)
    problems = result["settings"]["lossless"]["problems"]
    setting = "temperature 1 without truncation, 6 proposals, 95 % intervals."
    lines += [table(head, rows, names=2), "", f"{problems:,} validation problems, {setting}"]
    return "\n".join(lines)


def _number(interval: list[float | None], factor: float, digits: int, *, sign: bool = False) -> str:
    spelled = "+" if sign else ""
    value, *bounds = [number if number is None else f"{factor * number:{spelled}.{digits}f}" for number in interval]
    return f"{value} (too few to tell)" if None in bounds else f"{value} ({bounds[0]} to {bounds[1]})"


if __name__ == "__main__":
    main()
