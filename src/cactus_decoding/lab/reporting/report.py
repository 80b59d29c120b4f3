"""From result files to one page and one table: every number with its interval, in the order of the files."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cactus_decoding.core.files.jsonl import number_of
from cactus_decoding.core.files.writing import page_templates
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.runs.results import RunResult, read_results
from cactus_decoding.lab.evaluation.runs.summary import PASS_AT, RunSummary, summarise, timed_apart
from cactus_decoding.lab.reporting import charts
from cactus_decoding.lab.reporting.pictures import clean, parts_of

COLUMNS = (
    ("score", "score", 3),
    *((f"pass_at_{k}", f"pass@{k}", 3) for k in PASS_AT),
    ("score_difference", "score − best lossless", 3),
    ("acceptance_rate", "acceptance rate", 3),
    ("acceptance_length", "acceptance_length", 2),
    ("accepted_per_step", "accepted_per_step", 2),
    ("nodes_per_step", "tree's nodes per step", 1),
    ("rejections_ratio", "rejections ÷ lossless", 2),
    ("tokens_per_answer", "tokens per answer", 1),
    ("length_ratio", "length ratio", 3),
    ("truncated", "cut at the limit", 3),
    ("truncated_difference", "cut − best lossless", 3),
    ("steps_per_answer", "steps per answer", 1),
    ("seconds_per_answer", "seconds per answer", 3),
    ("first_seconds_per_answer", "seconds to first token", 3),
    ("seconds_ratio", "wall time ÷ best lossless", 3),
    ("seconds_ratio_to_best_tree", "wall time ÷ best lossless tree", 3),
    ("seconds_ratio_to_target_alone", "wall time ÷ target alone", 3),
    ("tokens_per_second", "tokens per second", 1),
    ("nats_per_token", "nats per token", 4),
    ("nats_per_answer", "nats per answer", 3),
    ("tv_per_position", "TV per position", 4),
    ("max_likelihood_ratio", "largest likelihood ratio", 1),
)
"""Metric, heading, digits."""
MAIN = (
    ("score", "score", 3),
    ("score_difference", "score − best lossless", 3),
    ("acceptance_length", "tokens per step", 2),
    ("seconds_per_answer", "seconds per answer", 3),
    ("seconds_ratio", "time ÷ best lossless", 2),
    ("tokens_per_second", "tokens per second", 1),
    ("tokens_per_answer", "tokens per answer", 1),
    ("truncated", "cut at the limit", 3),
    ("nats_per_answer", "nats per answer", 3),
)
"""What most readers look for first; the same as in `COLUMNS`."""
_LARGE = 1e6


@dataclass(frozen=True)
class Picture:
    svg: str
    caption: str
    alternative: str  # what it shows, for those who cannot see it
    wide: bool = False  # takes the page's width

    @property
    def source(self) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True, eq=False)
class Section:
    title: str
    pairs: Mapping[str, Sequence[RunSummary]]  # by pair of models
    pictures: Sequence[Picture]
    warnings: Sequence[str]  # of answers that are longer, and of times that cannot be compared
    notes: Sequence[str]  # how runs were verified; what is missing, and why


@dataclass(frozen=True)
class Rejections:
    """Where lossless rejects; a row is a kind of token, its share of rejected tokens, and of those written instead."""

    caption: str
    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, eq=False)
class Report:
    """What a page shows; ``sources`` are file names, each with its provenance."""

    sections: Sequence[Section]
    frontier: Picture | None = None
    rejections: Rejections | None = None
    sources: Sequence[tuple[str, str]] = field(default_factory=tuple)


def read_all(paths: Sequence[Path]) -> list[tuple[Path, list[RunResult]]]:
    seen: dict[str, Path] = {}
    found = []
    for path in paths:
        results = read_results(path)
        if not results:
            raise ValueError(f"{path}: there is no finished run in this file")
        for number, result in enumerate(results, start=1):
            if result.config.key in seen:
                raise ValueError(f"{path}, line {number}: this run is also in {seen[result.config.key]}")
            seen[result.config.key] = path
        found.append((path, results))
    return found


def make_report(
    files: Sequence[tuple[Path, Sequence[RunResult]]], frontier: tuple[Path, Mapping[str, Any]] | None = None
) -> Report:
    summaries = summarise(result for _, results in files for result in results)
    groups: dict[tuple[Any, ...], list[RunSummary]] = {}
    for summary in summaries:
        config, request = summary.config, summary.config.request
        same = config.task, config.problems, config.answered_by, config.chat, request.max_new_tokens, request.sampling
        groups.setdefault(same, []).append(summary)
    sources = [(clean(str(path)), _made_by([result.provenance for result in results])) for path, results in files]
    picture = rejected = None
    if frontier is not None:
        path, result = frontier
        sources.append((clean(str(path)), _made_by([result["provenance"]])))
        picture, rejected = _frontier_of(result), _rejections_of(result)
    return Report([_section(group) for group in groups.values()], picture, rejected, sources)


def _title(summary: RunSummary) -> str:
    config = summary.config
    how = "" if config.chat is None else f", {config.chat}"
    return clean(
        f"{config.task}: {config.problems} problems, {config.request.sampling.described}, {config.answered_by}{how}"
    )


def _section(summaries: Sequence[RunSummary]) -> Section:
    pairs: dict[str, list[RunSummary]] = {}
    for summary in summaries:
        pair = clean(f"target {summary.config.target}, draft {summary.config.draft}")
        pairs.setdefault(pair, []).append(summary)
    pictures: list[Picture] = []
    notes = [said] if (said := verified_by(summaries)) else []
    warnings = [*length_warnings(summaries), *timing_warnings(summaries)]
    for name, ours in pairs.items():
        pictures += _pictures(name, ours, notes)
    if len(pairs) > 1:
        pictures.append(
            Picture(
                charts.time_picture(pairs),
                "Normalised wall time per answer against proposals per step, for each pair of models.",
                f"Line charts side by side for {len(pairs)} pairs; the tables below have the numbers.",
                wide=True,
            )
        )
    return Section(_title(summaries[0]), pairs, pictures, warnings, notes)


def _pictures(name: str, summaries: Sequence[RunSummary], notes: list[str]) -> list[Picture]:
    """Return the pictures of one pair; add to the notes why one is missing."""
    found, table = [], "The table below has the numbers."
    if all(summary.metrics["score"] is None for summary in summaries):
        notes.append(f"{name}: the task has no score, so there is no picture of it.")
    else:
        alone = (each.metrics["score"] for each in summaries if each.config.num_speculative_tokens == 0)
        band = next((score for score in alone if score is not None and math.isfinite(score.low)), None)
        if band is None:
            notes.append(f"{name}: the target alone was not measured, so its score has no band.")
        caption = f"Score against acceptance rate; ×N: proposals per step. {name}."
        found.append(Picture(charts.score_picture(summaries, band), caption, f"Scatter chart of score. {table}"))
    caption = f"Normalised wall time per answer against proposals per step. {name}."
    found.append(Picture(charts.time_picture({name: summaries}), caption, f"Line chart of wall time. {table}"))
    if any(summary.metrics["nats_per_token"] is not None for summary in summaries):
        caption = f"Acceptance rate against what it costs: exact nats per token. {name}."
        found.append(Picture(charts.nats_picture(summaries), caption, f"Scatter chart of nats. {table}"))
    else:
        notes.append(f"{name}: nobody audited, so there is no picture of the nats.")
    if any(summary.metrics["length_ratio"] is not None for summary in summaries):
        caption = f"Length ratio of every setting: above 1, answers are longer than lossless's. {name}."
        found.append(Picture(charts.length_picture(summaries), caption, f"Dot chart of length ratios. {table}"))
    else:
        notes.append(f"{name}: lossless was not measured, so nothing is compared with it.")
    return found


def _frontier_of(result: Mapping[str, Any]) -> Picture:
    settings = result["settings"]
    caption = (
        f"Exact acceptance against divergence at {result['visited']} positions that a lossless run visited on "
        f"{result['problems']} problems ({settings.get('task')}), target {settings.get('target')}, draft "
        f"{settings.get('draft')}, temperature {settings.get('temperature')}."
    )
    return Picture(
        charts.frontier_picture(result), clean(caption, 400), "Two line charts: acceptance against KL and TV."
    )


def _rejections_of(result: Mapping[str, Any]) -> Rejections | None:
    if (found := result.get("rejections")) is None:  # a file of an earlier version
        return None

    def percent(values: Sequence[Any]) -> str:
        return with_interval(Interval(*(100 * number_of(each) for each in values)), 1)

    caption = (
        f"Where lossless rejects, by kind of token: {percent(found['rejected'])} % of {result['visited']} proposals."
    )
    rows = [(clean(each["kind"]), percent(each["drafted"]), percent(each["written"])) for each in found["kinds"]]
    return Rejections(caption, rows)


def _made_by(provenances: Sequence[Mapping[str, Any]]) -> str:
    return "\n".join(dict.fromkeys(json.dumps(each, indent=1, sort_keys=True) for each in provenances))


def with_interval(interval: Interval | None, digits: int) -> str:
    """Format a number with its interval; a dash if it is unknown."""
    if interval is None or math.isnan(interval.value):
        return "–"
    value, low, high = (short_number(x, digits) for x in interval)
    return value if math.isnan(interval.low) else f"{value} ({low} to {high})"


def short_number(value: float, digits: int) -> str:
    """Format a value; a very large one with an exponent."""
    if not math.isfinite(value):
        return "∞"
    return f"{value:.{digits}f}" if abs(value) < _LARGE else f"{value:.1e}"


def columns_of(
    summaries: Sequence[RunSummary], columns: Sequence[tuple[str, str, int]] = COLUMNS
) -> list[tuple[str, str, int]]:
    return [column for column in columns if any(summary.metrics[column[0]] is not None for summary in summaries)]


def verdict(summaries: Sequence[RunSummary]) -> str:
    """Say which relaxed setting of a pair saves most time beside the best lossless one, and what it costs.

    Where the target alone is faster than that, this is said first.
    Where some runs are coupled and others are not, each kind has a lossless run and a verdict of its own.
    """
    relaxed = [each for each in summaries if each.config.rule != "lossless"]
    kinds = {each.config.coupled: "Coupled" if each.config.coupled else "Not coupled" for each in relaxed}
    if len(kinds) < 2:
        return _verdict(relaxed)
    alike = {said: [each for each in relaxed if each.config.coupled == coupled] for coupled, said in kinds.items()}
    return " ".join(f"{said}: {_verdict(each)}" for said, each in alike.items())


def _verdict(relaxed: Sequence[RunSummary]) -> str:
    timed = [each for each in relaxed if _known(each, "seconds_ratio")]
    if not timed:
        measured = any(each.baseline is not None for each in relaxed)
        why = "times were not measured" if measured else "lossless was not measured, so nothing is compared"
        why = "times were not taken in the same way as those of lossless" if timing_warnings(relaxed) else why
        why = why if relaxed else "no relaxed rule was measured"
        return f"There is no verdict: {why}."
    best = min(timed, key=lambda each: each.known("seconds_ratio").value)
    time = best.known("seconds_ratio")
    assert best.baseline is not None
    baseline = clean(best.baseline.config.label)
    name = clean(best.config.label)
    without = best.metrics["seconds_ratio_to_target_alone"]
    which = "best lossless setting" + (" with a draft" if without is not None and without.value > time.value else "")
    taken = f"{with_interval(time, 2)} of the time of {baseline}, the {which}"
    first = _said_of_alone(name, without)
    chosen = f" It was chosen among {len(timed)} relaxed settings on the same problems." if len(timed) > 1 else ""
    if not time.has_ends:
        said = f"{first}{name} took {taken}; there are too few problems to tell more.{chosen}"
    elif time.high < 1:
        said = f"{first}{name} {'took' if first else 'was fastest: an answer took'} {taken}.{chosen}"
    elif time.low > 1:
        return f"{first}No relaxed rule was faster than lossless: the best, {name}, took {taken}."
    else:
        said = f"{first}No relaxed rule was faster than lossless beyond chance: the best, {name}, took {taken}."
    if not _known(best, "score_difference"):
        return f"{said} The task has no score, so what that costs is not known."
    points = Interval(*(100 * each for each in best.known("score_difference")))
    sure = " more than chance explains" if points.high < 0 else " which chance may explain" if points.low <= 0 else ""
    said += f" Its score differs from lossless by {with_interval(points, 1)} points"
    return f"{said},{sure}." if sure else f"{said}."


def _said_of_alone(name: str, ratio: Interval | None) -> str:
    """Say where answering without a draft is faster than a setting, or may be; nothing where that is slower."""
    if ratio is None or not ratio.has_ends or ratio.high < 1:
        return ""
    return (
        f"Answering without a draft {'is faster' if ratio.low > 1 else 'may be as fast'}: {name} takes "
        f"{with_interval(ratio, 2)} times as long. "
    )


def length_warnings(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a sentence for each relaxed setting whose answers are longer than lossless's, or cut more often.

    Both are said beyond chance only: where the whole 95 % interval lies above.
    """
    said = []
    for each in summaries:
        if each.config.rule == "lossless" or each.baseline is None:
            continue
        ratio, cut = each.metrics["length_ratio"], each.metrics["truncated_difference"]
        longer = [f"{with_interval(ratio, 2)} times as long as"] if ratio is not None and ratio.low > 1 else []
        if cut is not None and cut.low > 0:
            points = Interval(*(100 * end for end in cut))
            longer.append(f"cut at the limit by {with_interval(points, 1)} points more often than")
        if longer:
            said.append(
                f"Longer answers: those of {clean(each.config.label)} are {' and '.join(longer)} those of "
                f"{clean(each.baseline.config.label)}. Go by the time per answer, not by tokens per second."
            )
    return said


def timing_warnings(summaries: Sequence[RunSummary]) -> list[str]:
    """Return a sentence for each setting that was timed otherwise than what it is compared with."""
    said = []
    for each in summaries:
        if each.baseline is not None and (different := timed_apart(each.group, each.baseline)):
            pair = f"{clean(each.config.label)} and {clean(each.baseline.config.label)}"
            named = " and ".join(name.replace("_", " ") for name in different)
            said.append(f"Times are not compared: those of {pair} were taken with different {named}.")
    return said


def verified_by(summaries: Sequence[RunSummary]) -> str:
    """Say what differences, times and acceptance are those of, where runs are coupled; nothing where none is."""
    coupled = [summary.config.coupled for summary in summaries]
    if not any(coupled):
        return ""
    said = (
        "Coupled: settings share their random numbers, so two of them write the same text until their rules differ. "
        "Their steps and times are those of coupled verification, which keeps somewhat fewer proposals than token "
        "verification."
    )
    return said if all(coupled) else f"{said} Every setting is compared with lossless that is verified in the same way."


def _known(summary: RunSummary, metric: str) -> bool:
    found = summary.metrics[metric]
    return found is not None and math.isfinite(found.value)


def marked_label(summary: RunSummary) -> str:
    """Return a run's label for a table; baselines are marked."""
    mark = mark_of(summary)
    return clean(summary.config.label) + (f" ({mark})" if mark else "")


def mark_of(summary: RunSummary) -> str:
    """Return what a run is a baseline for: lossless at its best draft length, or at its best chain and tree.

    Where the target alone is faster, that is the best one with a draft.
    """
    if summary.group is summary.best_tree:
        return "best lossless tree"
    if summary.group is not summary.baseline:
        return ""
    if summary.best_tree is not None:
        return "best lossless chain"
    alone = summary.metrics["seconds_ratio_to_target_alone"]
    return "best lossless with a draft" if alone is not None and alone.value > 1 else "best lossless"


def compared_with(summaries: Sequence[RunSummary]) -> list[str]:
    """Return the baseline of each run, if they have different ones; else nothing."""
    baselines = ["–" if each.baseline is None else clean(each.baseline.config.label) for each in summaries]
    return baselines if len(set(baselines)) > 1 else []


_KIND_HEADINGS = ("kind of token", "rejected, %", "written instead, %")
READING = (
    "Expected at the recorded positions, with intervals over problems. Where most are words, the draft words things "
    "differently: training it or relaxing the rule wins much of that back. Where most are digits, it may fail at what "
    "the target can do: a better draft helps."
)
EXPLANATION = (
    "Each number stands with its 95 % interval. For scores it is exact (Clopper and Pearson). For differences of "
    "scores, which are paired by problem, it is approximate (Newcombe; Zou and Donner). For the rest it is "
    "bootstrapped over problems, paired where settings are compared. There is none where the problems are too few to "
    "tell (fewer than six, or all alike), nor where two settings write the same texts by definition. The baseline is "
    "lossless sampling at its own best draft length, found in the same run; where trees were proposed, "
    "at its best chain, and its best tree stands beside it. "
    "Verdicts go by wall time per answer: tokens per second alone would reward longer answers. An answer is cut at the "
    "limit if it reached the most tokens that were allowed, so it would have been longer. A largest likelihood "
    "ratio is a maximum and has no interval. Settings stand in the order in which they were measured."
)


def report_to_html(report: Report) -> str:
    """Return one page that needs no network and no script."""
    templates = page_templates(Path(__file__).parent)
    templates.globals |= {
        "columns_of": columns_of,
        "number": with_interval,
        "name_of": marked_label,
        "parts_of": parts_of,
    }
    templates.globals |= {"MAIN": MAIN, "verdict": verdict, "compared_with": compared_with}
    templates.globals |= {"KINDS": _KIND_HEADINGS, "READING": READING}
    return templates.get_template("report.html.jinja").render(report=report, explanation=EXPLANATION)


def to_markdown(report: Report) -> str:
    parts = []
    for section in report.sections:
        parts.append(f"## {escape(section.title)}")
        parts += [f"{escape(name)}: {escape(verdict(summaries))}" for name, summaries in section.pairs.items()]
        parts += map(escape, section.warnings)
        for name, summaries in section.pairs.items():
            columns = columns_of(summaries)
            baselines = compared_with(summaries)
            titles = [*(["compared with"] if baselines else []), *(title for _, title, _ in columns)]
            lines = [f"| {escape(name)} | " + " | ".join(titles) + " |"]
            lines.append("|---|" + "---|" * bool(baselines) + "---:|" * len(columns))
            for place, summary in enumerate(summaries):
                numbers = [with_interval(summary.metrics[metric], digits) for metric, _, digits in columns]
                cells = [escape(marked_label(summary)), *map(escape, baselines[place : place + 1]), *numbers]
                lines.append(f"| {' | '.join(cells)} |")
            parts.append("\n".join(lines))
        parts += [escape(note) for note in section.notes]
    if report.rejections is not None:
        lines = [f"| {' | '.join(_KIND_HEADINGS)} |", "|---|---:|---:|"]
        lines += [f"| {' | '.join(map(escape, row))} |" for row in report.rejections.rows]
        parts += [f"## {escape(report.rejections.caption)}", READING, "\n".join(lines)]
    return "\n\n".join([*parts, EXPLANATION]) + "\n"


def escape(text: str) -> str:
    r"""Return text that Markdown shows as it is, inside a table too.

    >>> print(escape("<b>|*x*"))
    &lt;b&gt;\|\*x\*
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in text)
