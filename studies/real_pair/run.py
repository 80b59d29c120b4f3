"""The study of a real pair: regenerates the tables of docs/studies/real_pair.md.

python -m studies.real_pair.run --answers FOLDER --target T.gguf    measures what `collect` kept; minutes on one core
python -m studies.real_pair.run --only-render                       tables again, from the result file
python -m studies.real_pair.run --answers FOLDER --target T.gguf --rows FILE
                                only writes the rows as `cactus frontier` records them, for studies.rules.frontier

With --importance FILE (`cactus learn-importance`) positions are protected by it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding import parse_rule
from cactus_decoding.cli.display import counting
from cactus_decoding.core.audit import audit_rows
from cactus_decoding.core.policy.importance import Importance, ImportanceLimit, read_importance
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.evaluation.intervals import ratio_of_sums
from cactus_decoding.lab.evaluation.score import expected_kept, steps_taken
from cactus_decoding.lab.frontier.frontier import sums_by
from cactus_decoding.lab.frontier.recorded_rows import shortened
from scripts.pages import ROOT, put
from scripts.results import parser, read, write
from studies.real_pair.answers import PROTECTED, Answers, read_answers
from studies.real_pair.page import choices, shown

RESULTS, PAGE = Path(__file__).with_name("results") / "rows.json.gz", ROOT / "docs" / "studies" / "real_pair.md"
CHOOSING = ROOT / "docs" / "choosing_a_rule.md"
TASKS = ("gsm8k", "humaneval", "spec_bench", "ifeval")
LENGTHS = (1, 3, 5, 7, 11, 15)
SAMPLINGS = {
    "plain": SamplingParams(),
    "own": SamplingParams(0.7, 20, 0.8),
    "paper": SamplingParams(0.6, 20, 0.95),
}
"""Temperature 1; that of the target's own generation settings; the Cactus paper's."""
RULES = (
    "lossless", "clamped:width=0.5", "clamped:width=1.0", "clamped:width=2.0", "clamped:width=3.0", "clamped:width=5.0",
    "cactus:delta=0.1", "cactus:delta=1.0", "cactus:delta=1.0,solver=exact", "ensemble:weight=0.3",
    "lenience:lenience=0.5", "typical", "top_k:k=10",
)  # fmt: skip
ROUNDS = 4
"""How often a text begins again, so that where it was cut counts for little."""
SHORTENED = 0.03
"""What is put together of either row at most: thirty times what was kept, for a tenth of the tokens to look at."""
RECORDED = 0.01
"""Likewise in rows for `studies.rules.frontier`."""
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
LEARNED = "learned"
"""Stands beside `PROTECTED` where an importance is given."""


class Measured:
    """What is known of each position under one sampling: acceptance and KL by rule, ``[positions]``.

    ``guarded`` says by protected set, or learned importance, whether lossless judges there; ``classes`` what the target
    and the draft write, and by how much each exceeds the other, ``[positions, classes, 4]``; ``ratios`` min(1, p/q) of
    the token that was written.
    """

    def __init__(
        self, answers: Answers, sampling: SamplingParams, rules: Sequence[str], words: Vocabulary,
        importance: Importance | None = None,
    ) -> None:  # fmt: skip
        count = len(answers.counts)
        self.acceptance = {rule: torch.zeros(count, dtype=torch.float64) for rule in rules}
        self.kl = {rule: torch.zeros(count, dtype=torch.float64) for rule in rules}
        self.guarded = {name: answers.masses[:, i] > Protection(name).threshold for i, name in enumerate(PROTECTED)}
        learned = None if importance is None else importance.weights(torch.device("cpu"), torch.float64)
        if importance is not None:
            most = ImportanceLimit(importance).max_importance
            self.guarded[LEARNED] = torch.zeros(count, dtype=torch.bool)
        self.classes = torch.zeros(count, len(CLASSES) + 1, 4, dtype=torch.float64)
        self.ratios = torch.zeros(count, dtype=torch.float64)
        masks = {name: Protection(name).mask(words).double() for name in PROTECTED}
        kinds = kinds_of(words)
        with counting("Auditing", count) as report:
            done = 0
            for places, ids, target, draft in answers.chunks(sampling):
                for rule in rules:
                    result = audit_rows(parse_rule(rule), target, draft)
                    self.acceptance[rule][places] = result.acceptance
                    self.kl[rule][places] = result.kl.clamp(min=0)
                for name, mask in masks.items() if sampling.truncates else ():  # else whole rows have said it
                    self.guarded[name][places] = (target * mask[ids]).sum(-1) > Protection(name).threshold
                if learned is not None:
                    read = (target * learned.target[ids] + draft * learned.draft[ids]).sum(-1) + learned.intercept
                    self.guarded[LEARNED][places] = read.sigmoid() > most
                more = torch.stack([target, draft, (target - draft).clamp(min=0), (draft - target).clamp(min=0)], -1)
                index = kinds[ids].unsqueeze(-1).expand_as(more)
                self.classes[places] = (
                    torch.zeros(len(places), len(CLASSES) + 1, 4).double().scatter_add_(1, index, more)
                )
                written = (ids == answers.written[places].unsqueeze(1)) & (target + draft > 0)
                q, p = ((row * written).sum(-1) for row in (target, draft))
                self.ratios[places] = (p / q.clamp(min=1e-300)).clamp(max=1)
                report(done := done + len(places), "")


def kinds_of(words: Vocabulary) -> Tensor:
    """Return the class of each token, as a place in `CLASSES`; control tokens are behind them."""
    patterns = [re.compile(pattern) for pattern in CLASSES.values()]
    kinds = [
        len(patterns)
        if token in words.control or not text
        else next((i for i, pattern in enumerate(patterns) if pattern.search(text)), len(patterns))
        for token, text in enumerate(words.texts)
    ]
    return torch.tensor(kinds)


def points(
    answers: Answers, measured: Measured, rules: Sequence[str], protected: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield each rule, where it may relax, on each task and on all."""
    texts = len(answers.about)
    tokens = torch.bincount(answers.problem, minlength=texts).double()
    lossless = measured.acceptance["lossless"]
    again = torch.cat([each.repeat(ROUNDS) for each in torch.arange(len(lossless)).split(tokens.long().tolist())])
    for rule in rules:
        for name in ("", *protected) if rule != "lossless" else ("",):
            guarded = measured.guarded[name] if name else torch.zeros_like(lossless, dtype=torch.bool)
            accepted = torch.where(guarded, lossless, measured.acceptance[rule])
            sums = [
                sums_by(each, answers.problem, texts) for each in (accepted, measured.kl[rule].where(~guarded, 0.0))
            ]
            steps = [steps_taken(accepted[again], answers.problem[again], length) / ROUNDS for length in LENGTHS]
            for task, mine in groups(answers):
                yield {
                    "rule": rule,
                    "protect": name,
                    "task": task,
                    "acceptance": short(ratio_of_sums(sums[0][mine], tokens[mine])),
                    "kl": short(ratio_of_sums(sums[1][mine], tokens[mine])),
                    "tokens_per_step": [short(ratio_of_sums(tokens[mine], each[mine])) for each in steps],
                }


def groups(answers: Answers) -> list[tuple[str, Tensor]]:
    """Return the tasks, with their answers' places, and all of them."""
    names = [about["task"] for about in answers.about]
    found = [(task, torch.tensor([i for i, name in enumerate(names) if name == task])) for task in dict.fromkeys(names)]
    return [*found, ("all", torch.arange(len(names)))]


def short(interval: Sequence[float]) -> list[float]:
    """Return an interval's numbers with five digits."""
    return [float(f"{each:.5g}") for each in interval]


def rejections(answers: Answers, measured: Measured) -> list[dict[str, Any]]:
    """Return, by task, what lossless rejections are about.

    By class: shares of what the target writes, of what is rejected there, and of what is written in its place. By
    protected set: the share of positions that it protects, and of rejections there.
    """
    found = []
    rejected = 1 - measured.acceptance["lossless"]
    for task, mine in groups(answers):
        here = torch.isin(answers.problem, mine)
        sums = measured.classes[here].sum(0)
        shares = sums / sums.sum(0)
        of = {"task": task, "positions": int(here.sum()), "answers": len(mine)}
        of["rejected"] = float(rejected[here].mean())
        of["classes"] = {
            name: short([shares[i, column] for column in (0, 3, 2)]) for i, name in enumerate((*CLASSES, CONTROL))
        }
        texts = len(answers.about)
        of["protected"] = {}
        for name, guarded in measured.guarded.items():
            lost, guarded_lost = (
                sums_by(each, answers.problem, texts)[mine] for each in (rejected, rejected * guarded)
            )
            share = short(ratio_of_sums(guarded_lost, lost))
            of["protected"][name] = {"positions": float(guarded[here].double().mean()), "rejections": share}
        found.append(of)
    return found


def along_texts(answers: Answers, measured: Measured) -> list[dict[str, float]]:
    r"""Return lossless tokens per step from every position on, by acceptances and without their independence.

    With x drawn from the target, the chance that a step from there keeps j proposals is the mean of
    :math:`\prod_{i \le j} \min(1, p(x_i)/q(x_i))`: no acceptance is assumed to be independent of another.
    """
    longest, found = max(LENGTHS), []
    lengths = torch.bincount(answers.problem)
    starts = lengths.cumsum(0) - lengths
    inner = torch.arange(len(answers.problem)) + longest <= (starts + lengths)[answers.problem]
    windows = inner.nonzero() + torch.arange(longest)
    both = [expected_kept(each[windows]).mean(0) for each in (measured.acceptance["lossless"], measured.ratios)]
    for length in LENGTHS:
        by_acceptance, exact = (1 + float(each[length - 1]) for each in both)
        found.append({"length": length, "by_acceptance": by_acceptance, "exact": exact})
    return found


def losses(answers: Answers, rules: Sequence[str], most: int) -> dict[str, Any]:
    """Return what shortening loses where rows were kept whole: the greatest and the mean difference, by rule."""
    wholes = list(answers.whole.items())[:most]
    found: dict[str, Any] = {"tail": SHORTENED, "positions": len(wholes), "rules": {}}
    for rule in rules:
        differences = []
        for place, rows in wholes:
            whole = (rows.double() / rows.double().sum(-1, keepdim=True)).unsqueeze(1)
            _, target, draft = shortened(rows[0], rows[1], int(answers.written[place]), SHORTENED)
            some = [(each / each.sum()).unsqueeze(0) for each in (target, draft)]
            exact, kept = (audit_rows(parse_rule(rule), *pair) for pair in (whole, some))
            differences.append(
                [abs(float(a - b)) for a, b in ((exact.acceptance, kept.acceptance), (exact.kl, kept.kl))]
            )
        table = torch.tensor(differences, dtype=torch.float64)
        found["rules"][rule] = {"most": short(table.amax(0).tolist()), "mean": short(table.mean(0).tolist())}
    return found


def measure(answers: Answers, target: Path, importance: Importance | None = None) -> dict[str, Any]:
    """Return all numbers of the page."""
    tokenizer = tokenizer_of(str(target))
    words = Vocabulary.of(tokenizer, max(int(answers.token_ids.max()) + 1, len(tokenizer)))
    importance = None if importance is None else importance.fit(words)
    result: dict[str, Any] = {"kept_tokens": float(answers.counts.double().mean()), "samplings": {}}
    for name, sampling in SAMPLINGS.items():
        plain = name == "plain"
        measured = Measured(answers, sampling, RULES, words, importance if plain else None)
        sets = list(measured.guarded) if plain else PROTECTED[:1]
        result["samplings"][name] = list(points(answers, measured, RULES, sets))
        if plain:
            result["rejections"] = rejections(answers, measured)
            result["along_texts"] = along_texts(answers, measured)
            result["categories"] = categories(answers, measured)
    result["whole_rows"] = losses(answers, RULES, most=8)
    return result


def categories(answers: Answers, measured: Measured) -> list[dict[str, Any]]:
    """Return acceptance by category of a task that has some."""
    found = []
    for name in dict.fromkeys(about["group"] for about in answers.about if about["task"] == "spec_bench"):
        mine = torch.tensor([i for i, each in enumerate(answers.about) if each["group"] == name])
        here = torch.isin(answers.problem, mine)
        rules = {rule: float(measured.acceptance[rule][here].mean()) for rule in ("lossless", "clamped:width=2.0")}
        found.append({"category": name, "answers": len(mine), "positions": int(here.sum()), "acceptance": rules})
    return found


def main() -> None:
    """Measure, then render."""
    path = {"type": Path}
    made = parser(
        __doc__,
        answers=(None, "the folder of studies.real_pair.collect", path),
        target=(None, "whose vocabulary says what tokens are", path),
        importance=(None, "learned from other problems", path),
        rows=(None, "write the rows here, and do nothing else", path),
        results=RESULTS,
        page=PAGE,
        only_render=False,
    )
    given = made.parse_args()
    if not given.only_render:
        if given.answers is None or given.target is None:
            made.error("--answers and --target say what to measure")
        answers = read_answers(given.answers, TASKS, SHORTENED if given.rows is None else RECORDED)
        collected = read(given.answers / "collected.json")
        if given.rows is not None:
            answers.recorded(collected["provenance"] | {"tail": RECORDED}).save(given.rows)
            return
        importance = None if given.importance is None else read_importance(given.importance)
        about = None if importance is None else {**importance.about, "digest": importance.digest}
        result = measure(answers, given.target, importance) | {"collected": collected}
        write(given.results, result, {"study": "real_pair", "target": given.target.name, "importance": about})
    result = read(given.results)
    put(given.page, shown(result))
    if given.page == PAGE:
        put(CHOOSING, {"real pair": choices(result)})


if __name__ == "__main__":
    main()
