"""Learned importance beside hand-made protection: regenerates the tables of docs/importance.md.

    python -m studies.importance.run                      the bundled file, 1,000 problems; can be interrupted
    python -m studies.importance.run --only-render        the tables again, from the result file

How important a position may be is chosen on validation problems of one seed so that as many proposals are accepted as
with digits protected; answers are to validation problems of another seed. The same command goes on where it was killed.
"""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cactus_decoding import Lossless, Pair, Request, audit, load_pair, parse_rule, stream
from cactus_decoding.core.policy.importance import Importance, ImportanceLimit, read_importance
from cactus_decoding.core.policy.protection import PATTERNS, Protection, may_relax
from cactus_decoding.core.policy.relaxation import RelaxationPolicy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.transformers.cached_model import vocabulary_size
from cactus_decoding.lab.evaluation.intervals import bootstrapped, paired_difference, resampled_sums
from cactus_decoding.lab.evaluation.run_config import RunConfig, seed_of
from cactus_decoding.lab.evaluation.runs.summary import RunGroup, RunSummary
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.pages import table, with_ends
from scripts.results import asked
from studies.study import answer, study

RESULTS = Path(__file__).with_name("results") / "importance.json.gz"
RULES = ("clamped:width=3", "cactus:delta=1")
DIGITS = Protection("digits", 0.01)
MATCHING, ANSWERED = "word_problems:split=validation,seed=1", "word_problems:split=validation"


def measure(given: Namespace) -> dict[str, Any]:
    """Answer problems under every setting; answers are kept beside, so that the same command goes on."""
    importance = read_importance(given.importance)
    limits = matched_limits(given.draft, importance, given.matching)
    plain = RunConfig(
        parse_task(ANSWERED, 1).name, "bundled", given.draft, problems=given.problems, request=Request(seed=0)
    )
    configs = {"lossless": plain}  # each by its rule, then what keeps it away
    for rule in RULES:
        policies = {
            "unprotected": RelaxationPolicy(),
            "digits": RelaxationPolicy(DIGITS),
            "matched": RelaxationPolicy(limit=ImportanceLimit(given.importance, limits[rule])),
            "default": RelaxationPolicy(limit=ImportanceLimit(given.importance)),
            "scaled": RelaxationPolicy(limit=ImportanceLimit(given.importance, 1.0, scale=True)),
        }
        for name, policy in policies.items():
            configs[f"{rule} {name}"] = plain.asking(rule=parse_rule(rule), policy=policy)
    found = answer(given.answers, list(configs.values()), asked(given), audited=False)
    runs = {name: found[config] for name, config in configs.items()}
    against = {
        name: compared(each.group, runs[f"{name.partition(' ')[0]} digits"].group)
        for name, each in runs.items()
        if name != "lossless" and not name.endswith("digits")
    }
    return {
        "learned": dict(importance.about), "found": found_by_itself(importance), "limits": limits,
        "settings": {name: numbers(each) for name, each in runs.items()}, "against_digits": against,
    }  # fmt: skip


def numbers(run: RunSummary) -> dict[str, Any]:
    """Return a setting's score and what it accepts, with 95 % intervals over problems."""
    told = {name: list(run.known(name)) for name in ("score", "accepted_per_step")}
    return {"setting": run.config.as_dict()} | told | {"problems": run.config.problems}


def compared(run: RunGroup, digits: RunGroup) -> dict[str, Any]:
    """Return the differences to protected digits on the same problems and seeds."""
    counts = np.stack([each.columns[name] for each in (run, digits) for name in ("accepted", "steps")], axis=1)
    value, drawn = (of[..., 0] / of[..., 1] - of[..., 2] / of[..., 3] for of in (counts.sum(0), resampled_sums(counts)))
    return {
        "score": list(paired_difference(run.columns["right"] - digits.columns["right"])),
        "accepted_per_step": list(bootstrapped(float(value), drawn, len(counts))),
    }


def matched_limits(draft: str, importance: Importance, problems: int) -> dict[str, float]:
    """Return, for each rule, the limit of importance with the acceptance that protected digits leave.

    Acceptance is exact at the positions of lossless answers: of the rule where it may judge, of lossless elsewhere.
    """
    pair = load_pair("bundled", draft)
    target, drafted, _ = rows_of(pair, MATCHING, problems)
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


def rows_of(pair: Pair, task: str, problems: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return both models' rows at the positions that lossless answers visit, in float64, and their problems."""
    target, draft, place_of = [], [], []
    for place, problem in enumerate(parse_task(task, problems).problems):
        for outcome in stream(pair, problem.prompt, seed=seed_of(1, place)):
            for visit in outcome.visits:
                assert visit.draft_probs is not None
                target.append(visit.target_probs.double())
                draft.append(visit.draft_probs.double())
                place_of.append(place)
    q, p = (rows / rows.sum(-1, keepdim=True) for rows in (torch.stack(target), torch.stack(draft)))
    return q, p, torch.tensor(place_of)


def found_by_itself(importance: Importance, top: int = 20) -> dict[str, float]:
    """Return which shares of all tokens, and of those that matter most, are digits or operators."""
    pair = load_pair("bundled", "ngram")
    words = Vocabulary.of(pair.tokenizer, len(importance.target_weights))
    chosen = torch.tensor([re.search(PATTERNS["numbers_and_operators"], text) is not None for text in words.texts])
    found = {"all": chosen.double().mean().item()}
    for side in ("target", "draft"):
        most = getattr(importance, f"{side}_weights").topk(top).indices
        found[f"top_{top}_of_{side}"] = chosen[most].double().mean().item()
    return {f"numbers_and_operators_among_{name}": share for name, share in found.items()}


def shown(result: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page."""
    fit, found = result["learned"]["fit"], result["found"]
    value, low, high = fit["auc"]
    among = {name.partition("_among_")[2]: f"{100 * each:.0f} %" for name, each in found.items() if "_among_" in name}
    lines = [
        f"Learned from {fit['positions']:,} rejected proposals in {fit['problems']:,} problems: keeping the proposal "
        f"spoils {100 * fit['worse']:.1f} % of the continuations (and mends {100 * fit['better']:.1f} %, which is the "
        f"target's own chance). ROC AUC on problems that it was not fitted to: {value:.3f} ({low:.3f} to {high:.3f}).",
        f"Digits and operators are {among['all']} of the vocabulary, {among['top_20_of_target']} of the twenty tokens "
        f"with the greatest weights in the target's row and {among['top_20_of_draft']} in the draft's.",
    ]
    kinds = {
        "": "nothing",
        "unprotected": "everywhere",
        "digits": "not at digits above 0.01",
        "matched": "importance ≤ {limit:g}",
        "default": "importance ≤ 0.2",
        "scaled": "scaled by importance",
    }
    rows = []
    for name, each in result["settings"].items():
        rule, _, how = name.partition(" ")
        said = kinds[how].format(limit=result["limits"].get(rule, 0))
        cells = ["", ""]
        if (against := result["against_digits"].get(name)) is not None:
            cells = [with_ends(against["score"], 1, 100, "+"), with_ends(against["accepted_per_step"], sign="+")]
        rows.append([rule, said, with_ends(each["score"], 1, 100), with_ends(each["accepted_per_step"]), *cells])
    head = "rule", "relaxed", "right, %", "accepted per step", "right, to digits", "accepted, to digits"
    problems = result["settings"]["lossless"]["problems"]
    setting = "temperature 1 without truncation, 6 proposals, 95 % intervals."
    lines += [table(head, rows, names=2), f"{problems:,} validation problems, {setting}"]
    return {"measured": "\n\n".join(lines)}


if __name__ == "__main__":
    study(
        __doc__, RESULTS, "studies/tables/importance.md", measure, shown,
        importance=("bundled:worded", "a file of cactus learn-importance"),
        draft=("bundled:worded", "the draft that it was learned with"),
        problems=(1000, "that are answered under every setting"),
        matching=(100, "problems on which the limits are chosen"),
        answers=(Path("importance_results.jsonl"), "where answers are kept"),
    )  # fmt: skip
