"""`python -m factory.check_bundled`: whether trained models are good enough to be bundled."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting, number
from factory.command import main

if TYPE_CHECKING:
    from factory.disagreement import Disagreement
    from factory.floors import Floor, PairScores

EXAMPLES = (
    "[bold]Examples[/bold]\n\npython -m factory.check_bundled --threads 1\n\n"
    "python -m factory.check_bundled --models ./trained --problems 100 --json check.json"
)


def check_bundled(
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="How many held-out problems to answer.")] = 500,
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with target/, worded/ and draft/, as factory.train_bundled writes it.",
            show_default="bundled",
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens that the draft proposes per step.")
    ] = 6,
    seed: Annotated[int, typer.Option(min=0, max=2**32, metavar="S", help="Of the problems and of the answers.")] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", dir_okay=False, help="Write the result, with its provenance, here."),
    ] = None,
    threads: options.Threads = None,
) -> None:
    """Measure the target with each of its drafts, and fail where a floor is missed.

    On held-out problems at temperature 1, the target alone must answer 90 % right, the plain draft at least 25 points
    fewer, and lossless speculation with it must have an acceptance_length between 2.5 and 5. On as many validation
    problems, at most 30 % of the worded draft's lossless rejections may be at digits, and in the Cactus paper's
    sampling with 20 proposals Cactus must accept 25 to 55 % more tokens a step. Exit code 1: a floor was missed.
    """
    import torch

    from cactus_decoding import load_pair, zoo
    from cactus_decoding.core.checks import check_integer
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import as_json, check_writable, write_atomically
    from cactus_decoding.zoo.word_problems import word_problems
    from factory.disagreement import disagreement
    from factory.floors import check_floors, check_wording, evaluate_pair
    from factory.pass_cost import pass_ratio

    check_integer("num_speculative_tokens", num_speculative_tokens, 1)
    check_writable(json_file)
    options.prepare(threads, small=True)
    target, worded, draft = (
        zoo.path(role) if models is None else models / role for role in ("target", "worded", "draft")
    )
    pair, draft_alone, worded_pair = (
        load_pair(*names, dtype=torch.float32) for names in ((target, draft), (draft, "ngram"), (target, worded))
    )
    how = {"num_speculative_tokens": num_speculative_tokens, "seed": seed}
    named = {"models": None if models is None else str(models), "problems": problems}
    arguments = {**named, "split": "test", "temperature": 1.0, **how}
    with counting("Answering", problems) as report:
        asked = list(islice(word_problems("test", seed=seed), problems))
        scores = evaluate_pair(pair, draft_alone, asked, **how, report=report)
    with counting("Answering with the worded draft", problems) as report:
        asked = list(islice(word_problems("validation", seed=seed), problems))
        wording = disagreement(worded_pair, asked, seed=seed, report=report)
    ratios = {name: pass_ratio(each) for name, each in (("worded", worded_pair), ("draft", pair))}
    floors = [*check_floors(scores), *check_wording(wording, worded)]
    if json_file is not None:
        result = {
            "scores": {name: getattr(scores, name).as_dict() for name in ("target", "draft", "lossless")},
            "worded": {"split": "validation"} | wording.as_dict(),
            "pass_ratios": ratios,
            "floors": [vars(floor) for floor in floors],
            "provenance": provenance(arguments),
        }
        write_atomically(json_file, as_json(result, indent=2) + "\n")
    console = Console(highlight=False)
    console.print(_table(scores, wording, ratios, floors))
    raise typer.Exit(0 if all(floor.met for floor in floors) else 1)


def _table(scores: PairScores, wording: Disagreement, ratios: dict[str, float], floors: list[Floor]) -> Table:
    table = Table(title=f"The bundled models on {scores.target.answers} problems")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("asked")
    table.add_column("")
    for floor in floors:
        met = "[bold #009e73]met[/]" if floor.met else "[bold underline #d55e00]missed[/]"
        table.add_row(floor.name, number(floor.value, 3), floor.asked, met)
    table.add_section()
    named = {name: getattr(scores, name) for name in ("target", "draft", "lossless")}
    named |= {f"worded, {name}": getattr(wording, name) for name in ("untruncated", "lossless", "relaxed")}
    for name, score in named.items():
        low, high = score.interval
        table.add_row(f"right answers, {name}", f"{score.right}/{score.answers}", f"95 %: {low:.3f} to {high:.3f}", "")
    for name in ("untruncated", "lossless", "relaxed"):
        accepted = getattr(wording, name).metrics.accepted_per_step
        table.add_row(f"accepted per step, worded, {name}", number(accepted, 3), "", "")
    for name, ratio in ratios.items():
        table.add_row(f"time of a pass ÷ target's, {name}", number(ratio, 3), "", "")
    return table


if __name__ == "__main__":
    sys.exit(main(check_bundled, EXAMPLES))
