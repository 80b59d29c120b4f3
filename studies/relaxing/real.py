"""What relaxing costs and brings on a real pair: regenerates docs/studies/relaxing.md from stored results.

    python -m studies.relaxing.real      renders; seconds

The rows behind it are those of `studies.real_pair` and of `studies.rules.frontier`. The answers at equal speed are
those of `cactus eval --server` to a server of vLLM; the page has the commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding import parse_rule
from cactus_decoding.lab.evaluation.intervals import Interval
from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise
from cactus_decoding.lab.frontier.costs import CostProfile, Forecast, forecast, named, read_profiles
from cactus_decoding.lab.reporting.pictures import style_of
from cactus_decoding.lab.reporting.report import with_interval
from scripts.pages import ROOT, columns, put, table
from scripts.results import parse, read
from studies.real_pair.page import LENGTHS, SAMPLINGS, SEVEN, TASKS
from studies.rules.frontier import elsewhere
from studies.shown import Axes, picture
from studies.stored import read_results

RESULTS = ROOT / "studies/real_pair/results/rows.json.gz"
EQUAL = ROOT / "studies/rules/results/real_frontier.json.gz"
TIMED = ROOT / "benchmarks/results/real_pair_bfloat16.json"
COSTS = ROOT / "docs/results/costs_gb200.json"
ANSWERS = Path(__file__).with_name("results") / "equal_speed_vllm.jsonl"
PAGE = "studies/relaxing.md"
ANSWER_TOKENS = 300
FORESEEN = (
    "lossless",
    "clamped:width=1.0",
    "clamped:width=2.0",
    "cactus:delta=1.0",
    "lenience:lenience=0.5",
    "typical",
)
IN_TIMES = {"lossless": ("lossless", ""), "Cactus 1": ("cactus:delta=1.0", ""), "clamped 2": ("clamped:width=2.0", ""),
            "clamped 2, digits protected": ("clamped:width=2.0", "digits")}  # fmt: skip
"""What the stored times call a rule, and the tokens that it protects."""
Point = Mapping[str, Any]


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables and the picture."""
    summaries, at_equal_speed = summaries_of(stored_answers()), summaries_of([ANSWERS])
    return {
        "equal speed": equal_speed(read(EQUAL)),
        "answers at equal speed": lengths(at_equal_speed),
        "lengths": lengths(summaries),
        "forecast": forecasts(result),
        "forecast error": errors(result),
        "pictures/relaxing/real-pair.svg": real_picture(result, [*at_equal_speed, *summaries]),
    }


def stored_answers() -> list[Path]:
    """Return the result files of answers of this package's own loop."""
    return [path.with_suffix("") for path in sorted(RESULTS.parent.glob("answers_*.jsonl.gz"))]


def summaries_of(paths: Sequence[Path]) -> list[RunSummary]:
    return [run for path in paths for run in summarise(read_results(path))]


def equal_speed(result: Mapping[str, Any]) -> str:
    """Return what each family costs at one acceptance, beside the clamped ratio at that very one."""
    rows = sorted(result["table"], key=lambda row: row["kl"] / row["clamped"]["kl"])
    return columns(rows, {
        "rule": lambda row: f"`{row['rule']}`{elsewhere(row)}",
        "accepts": "{acceptance:.3f}", "nats per position": "{kl:.3f}",
        "÷ clamped ratio's": lambda row: f"{row['kl'] / row['clamped']['kl']:.2f}", "total variation": "{tv:.3f}",
        "a token becomes likelier, at most": lambda row: times(math.exp(row["max_log_ratio"])),
    })  # fmt: skip


def times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio < 1e4 else f"10{superscript(round(math.log10(ratio)))}×"


def superscript(number: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))


def lengths(summaries: Sequence[RunSummary]) -> str:
    """Return right answers, lengths, cut answers and steps of stored runs, each beside lossless."""

    def name(run: RunSummary) -> str:
        rule, _, policy = run.config.label.partition(" ×")[0].partition(" ")
        return f"`{rule}` {policy}".strip()

    def asked(run: RunSummary) -> str:
        sampling = "the paper's sampling" if run.config.request.sampling.truncates else "temperature 1"
        return f"{TASKS[run.config.task]}, {sampling}"

    def of(metric: str, digits: int, scale: float = 1.0) -> Any:
        return lambda run: "–" if run.metrics[metric] is None else run.known(metric).shown(digits, scale=scale)

    return columns(summaries, {
        "task": asked, "rule": name, "right, %": of("score", 0, 100),
        "− lossless, points": of("score_difference", 0, 100),
        "tokens per answer": of("tokens_per_answer", 0), "tokens ÷ lossless": of("length_ratio", 2),
        "cut at 512, %": of("truncated", 0, 100), "cut − lossless, points": of("truncated_difference", 0, 100),
        "tokens per step": of("acceptance_length", 2), "steps per answer": of("steps_per_answer", 0),
        "steps ÷ lossless": of("steps_ratio", 2),
    }, names=2)  # fmt: skip


def tokens_of(result: Mapping[str, Any], sampling: str, rule: str, protect: str, task: str) -> dict[int, Interval]:
    """Return the recorded tokens per step by the number of proposals."""
    [point] = [
        each
        for each in result["samplings"][sampling]
        if (each["rule"], each["protect"], each["task"]) == (rule, protect, task)
    ]
    return {length: Interval(*each) for length, each in zip(LENGTHS, point["tokens_per_step"], strict=True)}


def forecasts(result: Mapping[str, Any]) -> str:
    profiles = named(read_profiles(COSTS))

    def cell(found: Forecast | None) -> str:
        return (
            "–" if found is None else f"{with_interval(found.seconds_per_answer, 2)}, ×{found.num_speculative_tokens}"
        )

    rows = [
        [
            f"the target alone ({ANSWER_TOKENS} passes)",
            "",
            *(f"{ANSWER_TOKENS * p.alone / 1000:.2f}" for p in profiles.values()),
        ]
    ]
    for sampling in ("plain", "paper"):
        for rule in FORESEEN:
            tokens = tokens_of(result, sampling, rule, "", "gsm8k")
            found = (cell(forecast(rule, tokens, each, ANSWER_TOKENS)) for each in profiles.values())
            rows.append([f"`{rule}`", SAMPLINGS[sampling], *found])
    return table(["rule", "sampling", *profiles], rows, names=2)


@dataclass(frozen=True)
class Foreseen:
    """A setting that was timed: times as fast as the target alone, as it was timed and by two forecasts."""

    setting: str
    timed: Interval
    by_rows: float  # by what was recorded elsewhere along the target's own answers
    by_own: float  # by what these very answers accepted

    @property
    def error(self) -> float:
        return self.by_rows / self.timed.value - 1


def foreseen(result: Mapping[str, Any]) -> Iterator[Foreseen]:
    """Yield each rule and number of proposals whose answers were timed on a machine that has a profile of passes."""
    stored = read(TIMED)
    passes = {size: 1000 * seconds for size, seconds in stored["pass_times"]["target"]}
    profile = CostProfile("here", "timed", passes, 1000 * stored["pass_times"]["draft"])
    alone = stored["summary"]["cells"]["plain"]["tokens_per_second"]
    yield Foreseen(
        "the target alone, tokens per second",
        Interval(alone, math.nan, math.nan),
        1000 / profile.alone,
        1000 / profile.alone,
    )
    for setting, cell in stored["summary"]["cells"].items():
        name, _, length = setting.rpartition("|")
        if name in IN_TIMES and length.isdecimal():
            k = int(length)
            tokens = tokens_of(result, "plain", *IN_TIMES[name], "all")
            faster = [
                profile.alone * per_step / profile.step(k) for per_step in (tokens[k].value, cell["tokens_per_step"])
            ]
            yield Foreseen(f"{name}, ×{k}", Interval(*cell["over_plain"]), *faster)


def errors(result: Mapping[str, Any]) -> str:
    """Return how many times as fast as the target alone each setting was, and was forecast to be."""
    return columns(foreseen(result), {
        "rule, proposals": lambda each: each.setting,
        "timed": lambda each: with_interval(each.timed, 2),
        "forecast by recorded acceptance": lambda each: f"{each.by_rows:.2f}",
        "forecast by the answers' own acceptance": lambda each: f"{each.by_own:.2f}",
        "error of the forecast": lambda each: f"{100 * each.error:+.0f} %",
    })  # fmt: skip


def real_picture(result: Mapping[str, Any], summaries: Sequence[RunSummary]) -> str:
    """Return nats against tokens per step for two samplings, and what answers lost; all with 95 % intervals."""

    def nats(sampling: str, axes: Axes) -> None:
        place = LENGTHS.index(SEVEN)
        points = [p for p in result["samplings"][sampling] if p["task"] == "all" and not p["protect"]]
        for family in dict.fromkeys(parse_rule(p["rule"]).name for p in points):
            ours = [p for p in points if parse_rule(p["rule"]).name == family]
            steps, spent = (
                np.array([p[name] if name == "kl" else p[name][place] for p in ours])
                for name in ("tokens_per_step", "kl")
            )
            spent = spent.clip(min=0)
            order = steps[:, 0].argsort()
            bars = [np.abs(each[:, 1:] - each[:, :1]).T[:, order] for each in (steps, spent)]
            look = style_of(ours[0]["rule"]).keywords() | {
                "linestyle": "-" if family == "clamped" else "",
                "markersize": 5,
            }
            axes.errorbar(steps[order, 0], spent[order, 0], xerr=bars[0], yerr=bars[1], label=family, **look)
        axes.set(xlabel="tokens per step of 7 proposals", ylabel="nats per position", title=SAMPLINGS[sampling])
        axes.set_yscale("symlog", linthresh=0.02)
        axes.set_ylim(bottom=-0.002)

    def scores(axes: Axes) -> None:
        runs = [run for run in summaries if run.config.rule != "lossless"][::-1]
        for height, run in enumerate(runs):
            points = [100 * each for each in run.known("score_difference")]
            axes.errorbar(
                points[0],
                height,
                xerr=[[points[0] - points[1]], [points[2] - points[0]]],
                color="#0072b2",
                fmt="o",
                ms=4,
            )
        labels = (f"{TASKS[run.config.task]}{', paper' if run.config.request.sampling.truncates else ''}: "
                  f"{run.config.label.partition(' ×')[0]}" for run in runs)  # fmt: skip
        axes.set_yticks(range(len(runs)), labels, fontsize=7)
        axes.axvline(0, color="#595959", lw=1, ls=":")
        axes.set(xlabel="right answers, points against lossless")

    return picture(partial(nats, "plain"), partial(nats, "paper"), scores, size=(15, 4.6))


def main() -> None:
    given = parse(__doc__, page=ROOT / "docs" / PAGE)
    put(given.page, shown(read(RESULTS)))


if __name__ == "__main__":
    main()
