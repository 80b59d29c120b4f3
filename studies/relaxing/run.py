"""Whether relaxing pays where the answer does not depend on it: regenerates docs/studies/tables/relaxing.md.

    python -m studies.relaxing.run                       everything: hours on one core, can be interrupted
    python -m studies.relaxing.run --sampling truncated  one of the two samplings, for a process of its own
    python -m studies.relaxing.run --only-render         tables and pictures again, from the result files

Widths and draft lengths are chosen on validation problems; the tables are of held-out ones. Needs
matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cactus_decoding import ModelDrafter, load_pair
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.summary import RunSummary
from cactus_decoding.lab.reporting.pictures import GREY
from cactus_decoding.lab.reporting.report import escape
from scripts.pages import columns, table
from scripts.results import read, write
from studies.shown import Axes, against, metric, picture
from studies.stored import read_runs
from studies.study import SAMPLING_OPTION, answer, pass_medians, run_of, study_of_parts

FOLDER = Path(__file__).with_name("results")
DRAFT = "bundled:worded"
VALIDATION, TEST = "word_problems:split=validation,seed=17", "word_problems"
LENGTHS = (4, 6, 8, 10, 20)
FIRST_LENGTH = 8
"""At which widths are compared."""
WIDTHS = (1.0, 2.0, 3.0, 5.0)
POLICIES: dict[str, dict[str, Any]] = {"unprotected": {}, "protected": {"protect": "digits"}}
LINES = {
    "lossless": ("#000000", "-"),
    "unprotected": ("#d55e00", ":"),
    "protected": ("#0072b2", "-"),
    "Cactus, protected": ("#cc79a7", "-."),
}
ALIKE = 0.02
"""By so much wall times may differ and count as alike."""
CACTUS = "cactus:delta=1.0"
COMPARED = (CACTUS, "cactus:delta=0.75", "typical", "top_k:k=10", "ensemble:weight=0.3")
"""What the Cactus paper's first table compares."""
PAPER = {"lossless": "5.11", CACTUS: "7.00"}
"""Accepted tokens a step that the Cactus paper gives (arXiv 2604.04987, table 1) for Qwen3 0.6B + 14B on GSM8K."""
PAPER_LENGTH = 20
FEWER = {"truncated": 300}
"""Held-out problems of what was chosen, where it is not the usual number."""
PASSES = 400
"""Of each size, in turn."""
COST_RATIOS = np.geomspace(0.02, 0.5, 40)


@dataclass(frozen=True)
class Sizes:
    """How many problems each part has: of validation, on which settings are chosen, and held-out ones."""

    chosen: int = 200  # on which widths are chosen
    lengths: int = 60  # on which draft lengths are chosen
    tuned: int = 1000  # held-out, of the settings that were chosen
    paper: int = 100  # of the paper's table
    grid: int = 25  # of every rule with every policy at every length


def measure(given: Namespace, sizes: Sizes, about: dict[str, Any]) -> None:
    """Choose, answer held-out problems, and time passes."""
    for sampling in given.sampling:

        def answered(part: str, configs: Sequence[RunConfig], prefix: str = sampling) -> dict[RunConfig, RunSummary]:
            return answer(given.folder / f"{prefix}-{part}.jsonl", configs, about)

        chosen = choose(answered, sampling, sizes)
        content = {kind: config.as_dict() for kind, config in chosen.items()}
        write(given.folder / f"chosen-{sampling}.json", {"chosen": content}, about)
        held_out(answered, sampling, sizes, chosen)
    if not (path := given.folder / "costs.json").exists():
        pair = load_pair(draft=DRAFT)
        assert isinstance(pair.drafter, ModelDrafter)
        models = {"target": pair.target, "draft": CachedModel(pair.drafter.model)}
        medians = pass_medians(models, (1, 5, 9, 21), PASSES)
        seconds = {f"target on {n}": each for n, each in medians["target"].items()}
        write(path, {"seconds": seconds | {"draft on 1": medians["draft"]["1"]}}, about)


def choose(answered: Any, sampling: str, sizes: Sizes) -> dict[str, RunConfig]:
    """Return the best run of each kind of policy on validation problems, of lossless and of protected Cactus.

    A width is the one of the most tokens a step at `FIRST_LENGTH` among those whose score is not
    below lossless's; where none is, the one of the highest score. A length is the longest one whose wall time per
    answer is at most `ALIKE` above the least: it takes the fewest passes of the target.
    """
    validated = partial(run_of, DRAFT, sampling=sampling, task=VALIDATION, problems=sizes.chosen)
    lossless = validated("lossless", FIRST_LENGTH, {})
    tried = {
        kind: [validated(f"clamped:width={width!r}", FIRST_LENGTH, policy) for width in WIDTHS]
        for kind, policy in POLICIES.items()
    }
    runs = answered("chosen", [lossless, *(config for configs in tried.values() for config in configs)])
    best = {"lossless": lossless}
    for kind, configs in tried.items():
        good = [each for each in configs if runs[each].known("score").value >= runs[lossless].known("score").value]
        most = "acceptance_length" if good else "score"
        best[kind] = max(good or configs, key=lambda each, most=most: runs[each].known(most).value)  # type: ignore[misc]
    best["Cactus, protected"] = validated(CACTUS, FIRST_LENGTH, POLICIES["protected"])
    at_lengths = {
        kind: [with_length(replace(config, problems=sizes.lengths), length) for length in LENGTHS]
        for kind, config in best.items()
    }
    runs = answered("chosen", [config for configs in at_lengths.values() for config in configs])
    return {kind: longest([runs[each] for each in configs]) for kind, configs in at_lengths.items()}


def longest(runs: Sequence[RunSummary]) -> RunConfig:
    """Return the run of the most proposals of those whose wall times are alike."""
    most = min(each.known("seconds_per_answer").value for each in runs) * (1 + ALIKE)
    alike = [each.config for each in runs if each.known("seconds_per_answer").value <= most]
    return max(alike, key=lambda config: int(config.num_speculative_tokens))


def with_length(config: RunConfig, length: int) -> RunConfig:
    return config.asking(num_speculative_tokens=length)


def held_out(answered: Any, sampling: str, sizes: Sizes, chosen: Mapping[str, RunConfig]) -> None:
    """Answer held-out problems: what was chosen, the paper's table, and the grid."""
    problems = min(sizes.tuned, FEWER.get(sampling, sizes.tuned))
    tuned = [replace(config, task=TEST, problems=problems) for config in chosen.values()]
    lengths = sorted({int(config.num_speculative_tokens) for config in chosen.values()})
    answered("tuned", tuned + [with_length(tuned[0], length) for length in lengths])  # lossless beside each of them

    ours = partial(run_of, DRAFT, sampling=sampling)
    protected = POLICIES["protected"]
    if sampling == "truncated":
        paper = [(rule, {}) for rule in ("lossless", *COMPARED)] + [(chosen["protected"].rule, protected)]
        answered("paper", [ours(rule, PAPER_LENGTH, policy, problems=sizes.paper) for rule, policy in paper])

    rules = (*COMPARED, *dict.fromkeys(chosen[kind].rule for kind in POLICIES))
    asked = [*product(rules, POLICIES.values(), LENGTHS), *(("lossless", {}, length) for length in LENGTHS)]
    answered("grid", [ours(rule, length, policy, problems=sizes.grid) for rule, policy, length in asked])


def shown(folder: Path, samplings: Sequence[str]) -> dict[str, str]:
    """Return the tables and pictures; raises `OSError` where a result file is missing."""
    seconds = read(folder / "costs.json")["seconds"]
    costs = Costs(seconds)
    rows = [[f"{name} token{'s' * (name[-2:] != ' 1')}", f"{1e3 * value:.2f} ms"] for name, value in seconds.items()]
    rows.append(["draft ÷ target: c", f"{costs.draft:.2f}"])
    rows.append(["each further token of a target pass", f"{costs.token:.3f} passes"])
    found = {"costs": table(("pass", "median"), rows)}
    for sampling in samplings:
        configs = read(folder / f"chosen-{sampling}.json")["chosen"]
        chosen = {kind: RunConfig.from_dict(config) for kind, config in configs.items()}
        validated, tuned, grid = (
            read_runs(folder / f"{sampling}-{part}.jsonl") for part in ("chosen", "tuned", "grid")
        )
        rows = [
            [kind, named(run), f"{run.known('score').value:.3f}", f"{run.known('acceptance_length').value:.2f}"]
            for kind, run in ((kind, validated[config]) for kind, config in chosen.items())
        ]
        found |= {
            f"chosen {sampling}": table(("kind", "chosen", "score there", "tokens per step"), rows, names=2),
            f"tuned {sampling}": _tuned(tuned, chosen["lossless"]),
            f"grid {sampling}": _grid([*grid.values()]),
            f"../pictures/relaxing/{sampling}-cost-ratio.svg": _cost_picture(chosen, validated, grid, costs),
        }
        if sampling == "truncated":
            found["paper"] = _paper([*read_runs(folder / f"{sampling}-paper.jsonl").values()])
    return found


def named(run: RunSummary) -> str:
    return escape(run.config.label)


def asking_the_same(runs: Mapping[RunConfig, RunSummary], config: RunConfig) -> RunSummary:
    """Return the run of other problems that asks what a run asks."""
    return next(run for each, run in runs.items() if each.request == config.request)


def _tuned(runs: Mapping[RunConfig, RunSummary], lossless: RunConfig) -> str:
    """Return what was chosen on held-out problems, beside lossless at its best and at the same length."""
    best = asking_the_same(runs, lossless)

    def same(run: RunSummary) -> RunSummary:
        return asking_the_same(runs, with_length(lossless, run.config.request.num_speculative_tokens))

    return columns(runs.values(), {
        "setting": lambda run: named(run) + (" (best lossless)" if run is best else ""),
        "score": metric("score", 3),
        "score − lossless, same length": against(same, "score"),
        "tokens per step": metric("acceptance_length", 2),
        "÷ lossless, same length": against(same, "tokens"),
        "steps per answer": metric("steps_per_answer", 1),
        "wall time ÷ best lossless": against(lambda _: best, "time"),
        "nats per token": metric("nats_per_token", 4),
    })  # fmt: skip


def _paper(runs: Sequence[RunSummary]) -> str:
    lossless = next(each.known("accepted_per_step").value for each in runs if each.config.rule == "lossless")
    return columns(runs, {
        "setting": named,
        "score": metric("score", 3),
        "accepted per step": metric("accepted_per_step", 2),
        "÷ lossless": lambda run: f"{run.known('accepted_per_step').value / lossless:.2f}",
        "the paper's, on its pair": lambda run: (
            PAPER.get(run.config.rule, "–") if run.config.request.policy.everywhere else "–"
        ),
    })  # fmt: skip


def _grid(runs: Sequence[RunSummary]) -> str:
    """Return score and tokens per step of every rule and policy, a column for each draft length."""
    lengths = sorted({int(each.config.num_speculative_tokens) for each in runs})
    settings: dict[str, dict[int, str]] = {}
    for each in runs:
        cells = settings.setdefault(escape(each.config.label.rpartition(" ×")[0]), {})
        length = int(each.config.num_speculative_tokens)
        cells[length] = f"{each.known('score').value:.2f}, {each.known('acceptance_length').value:.2f}"
    rows = [[name, *(cells.get(length, "–") for length in lengths)] for name, cells in settings.items()]
    return table(("score, tokens per step", *(f"×{length}" for length in lengths)), rows)


class Costs:
    """What a step costs, in passes of the target over one token: of the draft, and of each further token."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        target = {int(name.split()[-1]): value for name, value in seconds.items() if name.startswith("target")}
        self.draft = seconds["draft on 1"] / target[1]
        # the slope of the line through the measured passes
        self.token = float(np.polyfit(list(target), list(target.values()), 1)[0]) / target[1]

    def per_answer(self, run: RunSummary, draft: float) -> float:
        """Return passes of the target that an answer takes, for a cost of the draft's pass."""
        steps, drafted = (float(run.group.columns[name].mean()) for name in ("steps", "drafted"))
        return steps + drafted * (self.token + draft)


def _cost_picture(
    chosen: Mapping[str, RunConfig], validated: Mapping[RunConfig, RunSummary], grid: Mapping[RunConfig, RunSummary],
    costs: Costs,
) -> str:  # fmt: skip
    """Return time per answer against what a draft pass costs: lengths chosen on validation problems for each cost."""

    def time(kind: str, ratio: float) -> float:
        alike = [each for each in validated.values() if with_length(each.config, 0) == with_length(chosen[kind], 0)]
        best = min(alike, key=lambda each: costs.per_answer(each, ratio))
        return costs.per_answer(asking_the_same(grid, best.config), ratio)

    def draw(axes: Axes) -> None:
        for kind, (colour, dashes) in LINES.items():
            times = [time(kind, ratio) for ratio in COST_RATIOS.tolist()]
            axes.plot(COST_RATIOS, times, color=colour, linestyle=dashes, label=kind)
        axes.axvline(costs.draft, color=GREY, lw=1, ls=":")
        look = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "color": GREY, "fontsize": 8}
        axes.annotate("this machine", (costs.draft, 1), (3, -10), **look)
        axes.set_xscale("log")
        axes.set_xticks([0.02, 0.05, 0.1, 0.2, 0.5], ["0.02", "0.05", "0.1", "0.2", "0.5"])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set(xlabel="cost of a draft pass, in target passes (c)", ylabel="target passes per answer")

    return picture(draw)


if __name__ == "__main__":
    study_of_parts(__doc__, FOLDER, Sizes(), measure, shown, "tables/relaxing.md", sampling=SAMPLING_OPTION)
