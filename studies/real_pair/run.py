"""The study of a real pair: regenerates the tables of docs/studies/tables/real_pair.md.

python -m studies.real_pair.run --answers FOLDER --target T.gguf    measures what `collect` kept; minutes on one core
python -m studies.real_pair.run --only-render                       tables again, from the result files

With --rows FILE rows are written as `cactus frontier` records them, for `studies.rules.frontier`.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding import parse_rule
from cactus_decoding.cli.display import counting
from cactus_decoding.core.audit import audit_rows
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.evaluation.intervals import ratio_of_sums
from cactus_decoding.lab.evaluation.score import expected_kept, steps_taken
from cactus_decoding.lab.frontier.frontier import sums_by
from cactus_decoding.lab.frontier.recorded_rows import shortened
from scripts.pages import ROOT, put
from scripts.results import read
from studies.real_pair.collect import PROTECTED, SHORTENED, Answers, read_answers
from studies.real_pair.page import LENGTHS, choices, shown
from studies.study import study

RESULTS, PAGE = Path(__file__).with_name("results") / "rows.json.gz", "studies/tables/real_pair.md"
CHOOSING = ROOT / "docs" / "choosing_a_rule.md"
TASKS = ("gsm8k", "humaneval", "spec_bench", "ifeval")
SAMPLINGS = {"plain": SamplingParams(), "own": SamplingParams(0.7, 20, 0.8), "paper": SamplingParams(0.6, 20, 0.95)}
"""Temperature 1; that of the target's own generation settings; the Cactus paper's."""
RULES = (
    "lossless", "clamped:width=0.5", "clamped:width=1.0", "clamped:width=2.0", "clamped:width=3.0", "clamped:width=5.0",
    "cactus:delta=0.1", "cactus:delta=1.0", "cactus:delta=1.0,solver=exact", "ensemble:weight=0.3",
    "lenience:lenience=0.5", "typical", "top_k:k=10",
)  # fmt: skip
ROUNDS = 4
"""How often a text begins again, so that where it was cut counts for little."""
CLASSES: Mapping[str, str] = {
    "digits": r"\d",
    "words": r"[^\W\d_]",
    "spaces and lines": r"^\s+$",
    "operators": r"[-+*/=<>^%×÷±≤≥≠]",
    "code symbols": r"[{}\[\]()_`#$\\@&|~;:]",
    "punctuation": r"\S",
}
"""Kinds of tokens; the first pattern that is found in a token's text decides."""
CONTROL = "control tokens"

Measured = Mapping[str, Mapping[str, Tensor]]
"""What is known of each position under one sampling, ``[positions, ...]``: ``acceptance`` and ``kl`` by rule.

``guarded`` says by protected set whether lossless judges there. ``texts`` has the ``classes``
of what target and draft write, and by how much each exceeds the other, ``[..., classes, 4]``, and ``ratios``, which is
min(1, p/q) of the token that was written.
"""


def measured(answers: Answers, sampling: SamplingParams, words: Vocabulary) -> Measured:
    """Look at every position."""
    masks, kinds = {name: Protection(name).mask(words).double() for name in PROTECTED}, kinds_of(words)
    found: dict[str, dict[str, list[Tensor]]] = {}

    def keep(kind: str, name: str, values: Tensor) -> None:
        found.setdefault(kind, {}).setdefault(name, []).append(values)

    with counting("Auditing", len(answers.counts)) as report:
        done = 0
        for places, ids, target, draft in answers.chunks(sampling):
            for rule in RULES:
                audited = audit_rows(parse_rule(rule), target, draft)
                keep("acceptance", rule, audited.acceptance)
                keep("kl", rule, audited.kl.clamp(min=0))
            for column, (name, mask) in enumerate(masks.items()):
                # whole rows have said it of rows that nothing is cut from
                mass = (target * mask[ids]).sum(-1) if sampling.truncates else answers.masses[places, column]
                keep("guarded", name, mass > Protection(name).threshold)
            more = torch.stack([target, draft, (target - draft).clamp(min=0), (draft - target).clamp(min=0)], -1)
            index = kinds[ids].unsqueeze(-1).expand_as(more)
            sums = torch.zeros(len(places), len(CLASSES) + 1, 4, dtype=torch.float64)
            keep("texts", "classes", sums.scatter_add_(1, index, more))
            written = (ids == answers.written[places].unsqueeze(1)) & (target + draft > 0)
            q, p = ((row * written).sum(-1) for row in (target, draft))
            keep("texts", "ratios", (p / q.clamp(min=1e-300)).clamp(max=1))
            keep("order", "places", places)
            report(done := done + len(places), "")
    order = torch.cat(found.pop("order")["places"]).argsort()
    return {kind: {name: torch.cat(parts)[order] for name, parts in by.items()} for kind, by in found.items()}


def kinds_of(words: Vocabulary) -> Tensor:
    """Return the class of each token, as a place in `CLASSES`; control tokens come after them."""
    patterns, control = [re.compile(pattern) for pattern in CLASSES.values()], len(CLASSES)

    def kind(token: int, text: str) -> int:
        if token in words.control:
            return control
        return next((i for i, pattern in enumerate(patterns) if pattern.search(text)), control)

    return torch.tensor([kind(token, text) for token, text in enumerate(words.texts)])


def tasks_and_all(answers: Answers) -> dict[str, Tensor]:
    """Return the places of the answers of each task, and of all."""
    names = [about["task"] for about in answers.about]
    tasks = {each: torch.tensor([i for i, name in enumerate(names) if name == each]) for each in dict.fromkeys(names)}
    return tasks | {"all": torch.arange(len(names))}


def short(interval: Iterable[float]) -> list[float]:
    """Return an interval's numbers with five digits."""
    return [float(f"{each:.5g}") for each in interval]


def points(answers: Answers, found: Measured, protected: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each rule, where it may relax, on each task and on all."""
    texts = len(answers.about)
    tokens, lossless = torch.bincount(answers.problem, minlength=texts), found["acceptance"]["lossless"]
    again = torch.cat([each.repeat(ROUNDS) for each in torch.arange(len(lossless)).split(tokens.tolist())])
    for rule in RULES:
        for name in ("", *protected) if rule != "lossless" else ("",):
            guarded = found["guarded"].get(name, torch.zeros_like(lossless, dtype=torch.bool))
            accepted = torch.where(guarded, lossless, found["acceptance"][rule])
            kept, spent = (
                sums_by(each, answers.problem, texts) for each in (accepted, found["kl"][rule].where(~guarded, 0.0))
            )
            steps = [steps_taken(accepted[again], answers.problem[again], length) / ROUNDS for length in LENGTHS]
            for task, mine in tasks_and_all(answers).items():
                yield {
                    "rule": rule, "protect": name, "task": task,
                    "acceptance": short(ratio_of_sums(kept[mine], tokens[mine])),
                    "kl": short(ratio_of_sums(spent[mine], tokens[mine])),
                    "tokens_per_step": [short(ratio_of_sums(tokens[mine], each[mine])) for each in steps],
                }  # fmt: skip


def rejections(answers: Answers, found: Measured) -> Iterator[dict[str, Any]]:
    """Yield, by task, what lossless rejections are about.

    By class: shares of what the target writes, of what is rejected there, and of what is written in its place. By
    protected set: the share of positions that it protects, and of rejections there.
    """
    rejected, texts = 1 - found["acceptance"]["lossless"], len(answers.about)
    for task, mine in tasks_and_all(answers).items():
        here = torch.isin(answers.problem, mine)
        sums = found["texts"]["classes"][here].sum(0)
        shares = (sums / sums.sum(0))[:, [0, 3, 2]]
        protected = {}
        for name, guarded in found["guarded"].items():
            lost, there = (sums_by(each, answers.problem, texts)[mine] for each in (rejected, rejected * guarded))
            positions = float(guarded[here].double().mean())
            protected[name] = {"positions": positions, "rejections": short(ratio_of_sums(there, lost))}
        yield {
            "task": task, "positions": int(here.sum()), "answers": len(mine), "rejected": float(rejected[here].mean()),
            "classes": {name: short(each) for name, each in zip((*CLASSES, CONTROL), shares.tolist(), strict=True)},
            "protected": protected,
        }  # fmt: skip


def along_texts(answers: Answers, found: Measured) -> list[dict[str, float]]:
    r"""Return lossless tokens per step from every position on, by acceptances and without their independence.

    With x drawn from the target, the chance that a step from there keeps j proposals is the mean of
    :math:`\prod_{i \le j} \min(1, p(x_i)/q(x_i))`: no acceptance is assumed to be independent of another.
    """
    longest, lengths = max(LENGTHS), torch.bincount(answers.problem)
    inner = torch.arange(len(answers.problem)) + longest <= lengths.cumsum(0)[answers.problem]
    windows = inner.nonzero() + torch.arange(longest)
    chances = (found["acceptance"]["lossless"], found["texts"]["ratios"])
    both = [expected_kept(each[windows]).mean(0) for each in chances]
    names = ("by_acceptance", "exact")
    return [
        {"length": length} | {name: 1 + float(each[length - 1]) for name, each in zip(names, both, strict=True)}
        for length in LENGTHS
    ]


def losses(answers: Answers, most: int) -> dict[str, Any]:
    """Return what shortening loses where rows were kept whole: the greatest and the mean difference, by rule."""
    wholes, rules = list(answers.whole.items())[:most], {}
    for rule in RULES:
        differences = []
        for place, rows in wholes:
            whole = (rows.double() / rows.double().sum(-1, keepdim=True)).unsqueeze(1)
            _, target, draft = shortened(rows[0], rows[1], int(answers.written[place]), SHORTENED)
            some = [(each / each.sum()).unsqueeze(0) for each in (target, draft)]
            exact, kept = (audit_rows(parse_rule(rule), *pair) for pair in (whole, some))
            differences.append(torch.cat([exact.acceptance - kept.acceptance, exact.kl - kept.kl]).abs())
        every = torch.stack(differences)
        rules[rule] = {"most": short(every.amax(0).tolist()), "mean": short(every.mean(0).tolist())}
    return {"tail": SHORTENED, "positions": len(wholes), "rules": rules}


def measure(given: Namespace) -> dict[str, Any]:
    """Return all numbers of the page; write the rows, and what is seen of them, if they are asked for."""
    collected = read(given.answers / "collected.json")
    answers, tokenizer = read_answers(given.answers, TASKS), tokenizer_of(str(given.target))
    if given.rows is not None:
        answers.recorded(collected["provenance"] | {"tail": SHORTENED}).save(given.rows)
    words = Vocabulary.of(tokenizer, max(int(answers.token_ids.max()) + 1, len(tokenizer)))
    result: dict[str, Any] = {"kept_tokens": float(answers.counts.double().mean()), "samplings": {}}
    for name, sampling in SAMPLINGS.items():
        plain = name == "plain"
        found = measured(answers, sampling, words)
        result["samplings"][name] = [*points(answers, found, PROTECTED if plain else PROTECTED[:1])]
        if plain:
            result["rejections"] = [*rejections(answers, found)]
            result["along_texts"] = along_texts(answers, found)
    return result | {"whole_rows": losses(answers, most=8), "collected": collected}


if __name__ == "__main__":
    path = {"type": Path}
    given = study(
        __doc__, RESULTS, PAGE, measure, shown, needed=["answers", "target"],
        answers=(None, "the folder of studies.real_pair.collect", path),
        target=(None, "whose vocabulary says what tokens are", path),
        rows=(None, "write the rows here", path),
    )  # fmt: skip
    if given.page == ROOT / "docs" / PAGE and not given.only_measure:
        put(CHOOSING, {"real pair": choices(read(given.results))})
