"""Tables of the study of a real pair, from its result file."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding.lab.evaluation.runs.summary import RunSummary, summarise
from scripts.pages import RESULTS as BENCHMARKS
from scripts.pages import Cell, columns, table, with_ends
from scripts.results import read
from studies.stored import read_results

RESULTS = Path(__file__).with_name("results")
TIMES = BENCHMARKS / "never_slower_long.json"
LENGTHS, SEVEN = (1, 3, 5, 7, 11, 15), 7
MAIN = ("lossless", "clamped:width=1.0", "clamped:width=2.0", "cactus:delta=1.0", "ensemble:weight=0.3", "typical")
GUARDED = ("clamped:width=2.0", "clamped:width=3.0", "cactus:delta=1.0")
TIMED = ("lossless", "clamped:width=2.0", "cactus:delta=1.0")
SHORT = {"lossless": "lossless", "clamped:width=2.0": "clamped, width 2", "cactus:delta=1.0": "Cactus, delta 1"}
"""Names in the heads of columns, which may break between words."""
TASKS = {"gsm8k": "GSM8K", "humaneval": "HumanEval", "spec_bench": "Spec-Bench", "ifeval": "IFEval", "all": "all"}
SETS = {"": "nothing", "digits": "digits", "numbers_and_operators": "digits, operators", "code": "code symbols",
        "learned": "what is learned to matter"}  # fmt: skip
SAMPLINGS = {"plain": "temperature 1", "own": "0.7, top-p 0.8, top-k 20", "paper": "0.6, top-p 0.95, top-k 20"}
Points = Mapping[tuple[str, str, str, str], Mapping[str, Any]]


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables, those of what `studies.real_pair.ask` answered too."""
    answered = (read_results(each.with_suffix("")) for each in sorted(RESULTS.glob("answers_*.jsonl.gz")))
    points = {
        (sampling, each["rule"], each["protect"], each["task"]): each
        for sampling, found in result["samplings"].items()
        for each in found
    }
    engines, rejections = _read("engines"), result["rejections"]
    return {
        "rules": _rules(points[("plain", rule, "", "all")] for rule in MAIN),
        "protected": _protected(points),
        "tasks": _tasks(points, rejections),
        "rejections": _rejections(rejections),
        "classes": _classes(rejections[-1]),
        "classes by task": _classes_by_task(rejections),
        "samplings": _samplings(points),
        "time": _time(points),
        "categories": _categories(result["categories"]),
        "checks": _checks(result),
        "children": _children(_read("children")["rules"]),
        "transformers": columns(engines["transformers"].items(), {
            "precision": lambda one: one[0].removeprefix("torch."),
            "texts that are `generate`'s": lambda one: f"{one[1]['equal']} of {one[1]['texts']}",
            "speed over its": lambda one: f"{one[1]['ratio']:.2f}",
            "tokens a step": lambda one: f"{one[1]['steps']:.2f}",
        }),
        "vllm": columns(engines["vllm"], {
            "rule": "`{rule}`", "answers": "{answers}", "tokens": "{tokens_per_answer:.1f}",
            "tokens a step": "{acceptance_length:.2f}",
        }),
        "trained": _trained(_read("smollm2_training")),
        "tuned": _tuned(_read("smollm2_profile")),
        "answers": _answers(summary for results in answered for summary in summarise(results)),
        "tables/real_pair.csv": _all(points),
    }  # fmt: skip


def choices(result: Mapping[str, Any]) -> str:
    """Return the table of the page on choosing a rule: tokens a step of 7, and nats a position in brackets."""
    points = {(sampling, each["rule"], each["protect"]): each for sampling, found in result["samplings"].items()
              for each in found if each["task"] == "all"}  # fmt: skip
    rows = []
    for rule in TIMED:
        digits = "" if rule == "lossless" else "digits"
        found = (points[key] for key in (("plain", rule, ""), ("plain", rule, digits), ("paper", rule, "")))
        cells = ((each["tokens_per_step"][LENGTHS.index(SEVEN)][0], each["kl"][0]) for each in found)
        rows.append([f"`{rule}`", *(f"{tokens:.2f} ({nats:.3f})" for tokens, nats in cells)])
    what = "tokens per step with 7 proposals (nats per position)"
    return table([what, SAMPLINGS["plain"], "digits protected", SAMPLINGS["paper"]], rows)


def _steps(point: Mapping[str, Any]) -> list[str]:
    """Return tokens per step of each length, that of 7 with its interval."""
    steps = zip(LENGTHS, point["tokens_per_step"], strict=True)
    return [with_ends(each if length == SEVEN else [*each[:1], None, None], 2) for length, each in steps]


def _nats(point: Mapping[str, Any], *, alone: bool = False) -> str:
    """Return nats a position with their interval, or alone; lossless spends none."""
    return "0" if point["rule"] == "lossless" else with_ends([point["kl"][0], None, None] if alone else point["kl"], 4)


def _rules(points: Iterable[Mapping[str, Any]]) -> str:
    head = ["rule", "acceptance", "nats a position", *(f"×{length}" for length in LENGTHS)]
    return table(
        head, ([f"`{each['rule']}`", with_ends(each["acceptance"], 3), _nats(each), *_steps(each)] for each in points)
    )


def _protected(points: Points) -> str:
    seven = LENGTHS.index(SEVEN)
    rows = []
    for rule in GUARDED:
        found = [points["plain", rule, name, "all"] for name in _sets(points)]
        rows.append(
            [f"`{rule}`", *(f"{each['tokens_per_step'][seven][0]:.2f} ({_nats(each, alone=True)})" for each in found)]
        )
    return table(["rule", *(SETS[name] for name in _sets(points))], rows)


def _sets(points: Points) -> list[str]:
    """Return what was protected: nothing, sets of tokens, and what an importance was learned for, if it was."""
    return [name for name in SETS if ("plain", GUARDED[0], name, "all") in points]


def _tasks(points: Points, found: Sequence[Mapping[str, Any]]) -> str:
    seven, rows = LENGTHS.index(SEVEN), []
    for each in found:
        of = [points["plain", rule, "", each["task"]] for rule in TIMED]
        tokens = (f"{point['tokens_per_step'][seven][0]:.2f}" for point in of)
        digits = _percent(each["protected"]["digits"]["rejections"])
        counts = f"{each['answers']}, {each['positions']:,}"
        rows.append([TASKS[each["task"]], counts, with_ends(of[0]["acceptance"], 3), digits, *tokens])
    head = ["", "answers, positions", "lossless accepts", "rejects at digits", *(SHORT[rule] for rule in TIMED)]
    return table(head, rows)


def _answers(summaries: Iterable[RunSummary]) -> str:
    head = ["", "rule", "answers", "right, %", "against lossless, points", "tokens", "cut, %", "tokens a step"]
    rows = []
    for each in summaries:
        sampling = each.config.request.sampling
        task = TASKS[each.config.task] + (f", {SAMPLINGS['paper']}" if sampling.truncates else "")
        shares = (each.known(name).shown(0, scale=100) for name in ("score", "score_difference"))
        cut = each.known("truncated").shown(0, scale=100)
        tokens, steps = each.known("tokens_per_answer").shown(0), each.known("acceptance_length").shown(2)
        rule, _, policy = each.config.label.partition(" ×")[0].partition(" ")
        rows.append([task, f"`{rule}` {policy}".strip(), str(len(each.group.ids)), *shares, tokens, cut, steps])
    return table(head, rows)


def _rejections(found: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in SETS if name in found[-1]["protected"]]
    head = ["", *(f"{SETS[name]}: positions / rejections" for name in names)]
    rows = []
    for each in found:
        cells = (each["protected"][name] for name in names)
        shares = (f"{100 * cell['positions']:.0f} % / {_percent(cell['rejections'])}" for cell in cells)
        rows.append([TASKS[each["task"]], *shares])
    return table(head, rows)


def _percent(interval: Sequence[Any]) -> str:
    return with_ends(interval, 0, 100) + " %"


def _classes(found: Mapping[str, Any]) -> str:
    head = ["class", "what the target writes", "what is rejected", "what is written in its place"]
    ordered = sorted(found["classes"].items(), key=lambda item: -item[1][1])
    return table(head, ([name, *(f"{100 * share:.1f} %" for share in shares)] for name, shares in ordered))


def _classes_by_task(found: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(found[-1]["classes"].items(), key=lambda item: -item[1][1])
    tasks = [each["classes"] for each in found[:-1]]
    rows = (
        [name, *(f"{100 * each[name][0]:.1f} / {100 * each[name][1]:.1f} %" for each in tasks)] for name, _ in ordered
    )
    return table(["class", *(f"{TASKS[each['task']]}: written / rejected" for each in found[:-1])], rows)


def _samplings(points: Points) -> str:
    rules = ("lossless", "clamped:width=1.0", "clamped:width=2.0", "cactus:delta=1.0")
    rows = []
    for rule in rules:
        found = [points[sampling, rule, "", "all"] for sampling in SAMPLINGS]
        cells = ((with_ends(each["acceptance"], 3), _steps(each)[LENGTHS.index(SEVEN)], _nats(each)) for each in found)
        rows.append([f"`{rule}`", *("; ".join(cell) for cell in cells)])
    return table(["rule", *(f"{title}: acceptance; tokens a step of 7; nats" for title in SAMPLINGS.values())], rows)


def curves() -> dict[str, tuple[Mapping[int, float], float]]:
    """Return what a pass over each number of tokens and a token of the draft cost, in passes over one token."""
    times = read(TIMES)["times"]
    sizes, seconds = np.array(times["target"]).T
    measured = {size: float(np.interp(size, sizes, seconds) / seconds[0]) for size in range(1, 17)}
    flat = dict.fromkeys(range(1, 17), 1.0)
    return {
        "one CPU core, measured": (measured, times["draft"] / seconds[0]),
        "4B for 70B on TPUs": (flat, 1.8 / 14.1),
        "250M for 11B on a TPU": (flat, 0.04),
    }


def _time(points: Points) -> str:
    rows = []
    for rule in TIMED:
        tokens = [each[0] for each in points["plain", rule, "", "all"]["tokens_per_step"]]
        cells = []
        for passes, draft in curves().values():
            per_token = {k: (passes[k + 1] + k * draft) / each for k, each in zip(LENGTHS, tokens, strict=True)}
            best = min(per_token, key=per_token.__getitem__)
            cells.append(f"{per_token[best]:.2f} ({best})")
        rows.append([f"`{rule}`", *cells])
    return table(["rule", *curves()], rows)


def _categories(found: Sequence[Mapping[str, Any]]) -> str:
    def accepts(rule: str) -> Cell:
        return lambda one: f"{one['acceptance'][rule]:.3f}"

    ordered = sorted(found, key=lambda each: each["acceptance"]["lossless"])
    counts: dict[str, Cell] = {"category": "{category}", "answers": "{answers}", "positions": "{positions}"}
    return columns(ordered, counts | {SHORT[rule]: accepts(rule) for rule in ("lossless", "clamped:width=2.0")})


def _checks(result: Mapping[str, Any]) -> str:
    whole = result["whole_rows"]
    rows = ([f"`{rule}`", *(f"{each:.1e}" for each in found["most"])] for rule, found in whole["rules"].items())
    along = (
        [str(each["length"]), f"{each['by_acceptance']:.3f}", f"{each['exact']:.3f}"] for each in result["along_texts"]
    )
    return "\n\n".join(
        [
            f"Greatest difference from whole rows at {whole['positions']} positions (bound: {whole['tail']:g}):",
            table(["rule", "acceptance", "nats"], rows),
            "Tokens of a lossless step from any position:",
            table(["proposals", "by acceptances", "exactly"], along),
        ]
    )


def _children(rules: Mapping[str, Any]) -> str:
    """Return how often one of some children is kept, with one that is drawn and with fixed ones alone."""
    counts = (1, 2, 3, 4, 8)
    rows = (
        [f"`{rule}`", kind, *(f"{kept[count - 1][0]:.3f}" for count in counts)]
        for rule, kinds in rules.items()
        for kind, kept in kinds.items()
    )
    return table(["rule", "children", *map(str, counts)], rows)


def _trained(found: Mapping[str, Any]) -> str:
    """Return what training brought, of steps of 6 proposals."""
    return columns(found["after"].items(), {
        "rule": lambda one: f"`{one[0]}`",
        "tokens a step before": lambda one: with_ends(found["before"][one[0]]["length"], 2),
        "after": lambda one: with_ends(one[1]["length"], 2),
        "acceptance after": lambda one: with_ends(one[1]["rate"], 2),
    })  # fmt: skip


def _tuned(found: Mapping[str, Any]) -> str:
    """Return what ways of proposing would bring, by pass times and acceptance."""
    passes, [draft] = dict(found["times"]["target"]), found["drafts"]
    speeds = {(each["draft"], each["num_speculative_tokens"]): each for each in found["forecasts"]}
    rows = []
    for count in (0, 1, 2, 3, 4, 8, 15):
        ways = [speeds.get((name, count)) or speeds["suffix", 0] for name in ("suffix", draft["draft"])]
        cells = (f"{each['tokens_per_second']:.1f} ({each['tokens_per_step']:.2f})" for each in ways)
        rows.append([str(count), f"{1000 * passes[count + 1]:.0f}", *cells])
    head = ["proposals", "target's pass, ms", "look-up: tokens/s (a step)"]
    return table([*head, f"draft, {1000 * draft['seconds']:.1f} ms each"], rows)


def _read(name: str) -> Any:
    return read(RESULTS / f"{name}.json")


def _all(points: Points) -> str:
    """Return every number with the ends of its 95 % interval, as comma-separated values."""
    measured = ["acceptance", "nats", *(f"tokens_per_step_of_{length}" for length in LENGTHS)]
    ended = [f"{name}{end}" for name in measured for end in ("", "_low", "_high")]
    head = ["sampling", "rule", "protected", "task", *ended]
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(head)
    for (sampling, *_), each in points.items():
        names = [SAMPLINGS[sampling], each["rule"], SETS[each["protect"]], TASKS[each["task"]]]
        numbers = [*each["acceptance"], *each["kl"], *(end for steps in each["tokens_per_step"] for end in steps)]
        rows.writerow([*names, *(f"{round(float(number), 4):g}" for number in numbers)])
    return written.getvalue()
