"""The study of all rules on the bundled target: regenerates docs/studies/tables/rules.md.

    python -m studies.rules.run                          everything: hours on one core, can be interrupted and continued
    python -m studies.rules.run --sampling truncated     one of the two samplings, for a process of its own
    python -m studies.rules.run --only-render            tables and pictures again, from the result files

Widths are matched on validation problems; answers are to held-out ones. Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cactus_decoding import Request, load_pair, parse_rule
from cactus_decoding.lab.evaluation.intervals import Interval, clustered_proportion
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import RunSummary
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.frontier.frontier import LOOSEST, Frontier
from cactus_decoding.lab.frontier.recording import record_rows
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from cactus_decoding.lab.reporting import charts
from cactus_decoding.lab.reporting.report import escape, marked_label, with_interval
from scripts.pages import columns
from scripts.pages import table as as_table
from scripts.results import read, write
from studies.rules.frontier import strictest
from studies.shown import compared, metric
from studies.stored import read_runs
from studies.study import SAMPLING_OPTION, SAMPLINGS, answer, run_of, study_of_parts

FOLDER = Path(__file__).with_name("results")
BUNDLED, CACTUS = "bundled:draft", "cactus:delta=1.0"
PUBLISHED = ("typical", "top_k:k=10", "ensemble:weight=0.3", "cactus:delta=0.75", CACTUS)
"""What the Cactus paper's first table compares, with the defaults of this package where it leaves a knob open."""
EXACT = "cactus:delta=1.0,solver=exact"
ONE_SIGMA = 0.158655
"""Of a normal distribution this much lies above one standard deviation."""
Columns = dict[str, tuple[str, int]]
BRIEF: Columns = {
    "score": ("score", 3),
    "score − best lossless": ("score_difference", 3),
    "acceptance_length": ("acceptance_length", 2),
    "nats per token": ("nats_per_token", 4),
    "length ratio": ("length_ratio", 3),
    "steps per answer": ("steps_per_answer", 1),
    "wall time ÷ target alone": ("seconds_ratio_to_target_alone", 3),
    "wall time ÷ best lossless": ("seconds_ratio", 3),
}
MAIN: Columns = {"acceptance rate": ("acceptance_rate", 3), "largest ratio": ("max_likelihood_ratio", 1)}
"""What the main settings show besides."""


@dataclass(frozen=True)
class Part:
    """A draft with the draft lengths of lossless (0: the target alone), of each rule, and of the clamped ratio.

    The clamped ratio is asked at the acceptance of a rule, by that rule.
    """

    draft: str
    problems: int
    lossless: tuple[int, ...]
    rules: dict[str, tuple[int, ...]]
    matched: dict[str, tuple[int, ...]]

    def configs(self, sampling: str, widths: Mapping[str, float], most: int) -> list[RunConfig]:
        """Return what is answered side by side."""
        clamped = {f"clamped:width={widths[rule]!r}": lengths for rule, lengths in self.matched.items()}
        asked = {"lossless": self.lossless} | self.rules | clamped
        ours = partial(run_of, self.draft, sampling=sampling, problems=min(self.problems, most))
        return [ours(rule, length) for rule, lengths in asked.items() for length in lengths]


_SIDE: dict[str, Any] = {
    "problems": 120,
    "lossless": (0, 2, 4, 10),
    "rules": {CACTUS: (4, 10), "typical": (10,), "ensemble:weight=0.3": (10,)},
    "matched": {CACTUS: (10,)},
}
PARTS = (
    Part(
        draft=BUNDLED,
        problems=1000,
        lossless=(0, 2, 4, 6, 10, 20),
        rules=dict.fromkeys((*PUBLISHED, EXACT), (10, 20)) | {"cactus:delta=0.1": (10,)},
        matched={CACTUS: (10, 20), "cactus:delta=0.1": (10,)},
    ),
    Part(draft=BUNDLED, problems=300, lossless=(0, 4, 6, 8), rules={CACTUS: (4, 6, 8)}, matched={CACTUS: (4, 6, 8)}),
    Part(draft="early_exit:layers=3", **_SIDE),
    Part(draft="ngram", **_SIDE),
)


@dataclass(frozen=True)
class Sizes:
    """How many problems a part has at most."""

    problems: int = 1000


def measure(given: Namespace, sizes: Sizes, about: dict[str, Any]) -> None:
    """Match the widths of each sampling if that was not done, and answer what its result file lacks."""
    for sampling in given.sampling:
        path = given.folder / f"matched-{sampling}.json.gz"
        if not path.exists():
            drafts = dict.fromkeys(part.draft for part in PARTS)
            write(path, {"matched": {draft: match(draft, sampling, given.positions) for draft in drafts}}, about)
        matched = read(path)["matched"]
        for part in PARTS:
            widths = {rule: found["width"] for rule, found in matched[part.draft].items()}
            answer(given.folder / f"{sampling}.jsonl", part.configs(sampling, widths, sizes.problems), about)


def match(draft: str, sampling: str, positions: int) -> dict[str, dict[str, Any]]:
    """Return, by rule, the width of the clamped ratio with the same acceptance at a lossless run's positions."""
    print(f"matching widths: {sampling}, draft {draft}", flush=True)
    task = parse_task("word_problems:split=validation", None)
    request = Request(num_speculative_tokens=10, sampling=SAMPLINGS[sampling], stop=task.stop)
    rows = record_rows(load_pair(draft=draft), [each.prompt for each in task.problems], request, positions=positions)
    frontier, found = Frontier(rows), {}
    for rule in dict.fromkeys(rule for part in PARTS if part.draft == draft for rule in part.matched):
        wanted = frontier.measure(rule)

        def accepts(rule: str) -> float:
            return frontier.measure(rule).acceptance.value

        clamped = frontier.measure(strictest(FAMILIES["clamped"], accepts, wanted.acceptance.value) or LOOSEST)
        width = parse_rule(clamped.rule).width  # type: ignore[attr-defined]
        both = {"rule": wanted.as_dict(), "clamped": clamped.as_dict()}
        found[rule] = {"width": width, "positions": rows.positions} | both
    return found


def shown(folder: Path, samplings: Sequence[str]) -> dict[str, str]:
    """Return the tables and pictures; raises `OSError` where a result file is missing."""
    found = {}
    for sampling in samplings:
        groups: dict[tuple[str, int], list[RunSummary]] = {}
        for run in read_runs(folder / f"{sampling}.jsonl").values():
            groups.setdefault((run.config.draft, run.config.problems), []).append(run)
        bundled = sorted((each for each in groups if each[0] == BUNDLED), reverse=True)
        main, tuned = groups[bundled[0]], groups[bundled[-1]]
        others = {draft: runs for (draft, _), runs in groups.items() if draft != BUNDLED}
        matched = read(folder / f"matched-{sampling}.json.gz")["matched"]
        tables = (f"Draft `{draft}`:\n\n{table(runs, BRIEF)}" for draft, runs in others.items())
        found |= {
            f"matched {sampling}": _matched(matched),
            f"main {sampling}": table(main, BRIEF | MAIN),
            f"paired {sampling}": _paired(main, matched[BUNDLED]),
            f"tuned {sampling}": table(tuned, BRIEF),
            f"others {sampling}": "\n\n".join(tables),
            f"../pictures/rules/{sampling}-score.svg": charts.score_picture(main, sigma_band(main), "±1 sigma"),
        }
        if sampling == "truncated":
            drafts = {"draft bundled": main} | {f"draft {draft}": runs for draft, runs in others.items()}
            found["../pictures/rules/truncated-time.svg"] = charts.time_picture(drafts)
    return found


def sigma_band(runs: Sequence[RunSummary]) -> Interval | None:
    """Return the target's own score and the ends of its exact 68 % interval; None where it was not measured alone."""
    for run in runs:
        if run.config.num_speculative_tokens == 0 and run.group.scored:
            return clustered_proportion(run.group.columns["right"], len(run.group.results), tail=ONE_SIGMA)
    return None


def table(runs: Sequence[RunSummary], shown: Columns) -> str:
    """Return a line for each run, and a column for each metric with its title and digits."""

    def name(run: RunSummary) -> str:
        return escape("target alone" if run.config.num_speculative_tokens == 0 else marked_label(run))

    return columns(runs, {"setting": name} | {title: metric(*each) for title, each in shown.items()})


def _paired(runs: Sequence[RunSummary], matched: Mapping[str, Any]) -> str:
    """Return questions that take two settings each, answered problem by problem."""
    found = {(run.config.rule, run.config.num_speculative_tokens): run.group for run in runs}
    baseline = runs[0].baseline
    assert baseline is not None
    best = ("lossless", int(baseline.config.num_speculative_tokens))
    clamped = {rule: f"clamped:width={each['width']!r}" for rule, each in matched.items()}
    asked = [(("lossless", 10), best)]
    for length in (10, 20):
        asked += [((rule, length), ("lossless", length)) for rule in ("typical", CACTUS)] + [((CACTUS, length), best)]
    asked += [((width, 10), (rule, 10)) for rule, width in clamped.items()]
    asked += [((clamped[CACTUS], 20), (CACTUS, 20)), *(((EXACT, length), (CACTUS, length)) for length in (10, 20))]
    rows = []
    for pair in dict.fromkeys(asked):
        differences = compared(*(found[each] for each in pair))
        cells = (with_interval(differences[name], 3) for name in ("score", "time", "steps", "nats"))
        rows.append([*(f"`{rule}` ×{length}" for rule, length in pair), *cells])
    head = "first", "second", "score: first − second", "wall time: first ÷ second", "steps: ratio", "nats: ratio"
    return as_table(head, rows, names=2)


def _matched(matched: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what rules cost at equal acceptance, exactly, at the validation positions of a lossless run."""

    def cells(point: Mapping[str, Any]) -> list[str]:
        kl = float("inf") if point["kl"][0] is None else float(point["kl"][0])
        return [f"{point['acceptance'][0]:.3f}", f"{kl:.4f}"]

    rows = [
        [f"`{draft}`", f"`{rule}`", *cells(found["rule"]), f"`clamped:width={found['width']}`",
         *cells(found["clamped"])]
        for draft, by_rule in matched.items() for rule, found in by_rule.items()
    ]  # fmt: skip
    head = "draft", "rule", "acceptance", "KL, nats", "clamped ratio", "acceptance", "KL, nats"
    return as_table(head, rows, names=2)


if __name__ == "__main__":
    positions = (4000, "validation positions on which widths are matched")
    study_of_parts(
        __doc__, FOLDER, Sizes(), measure, shown, "tables/rules.md", sampling=SAMPLING_OPTION, positions=positions
    )
