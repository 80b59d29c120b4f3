"""`cactus calibrate`: a rule, its knob and what it protects for a limit, or lossless where that is better."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape

from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from cactus_decoding.cli.options import OUTPUT, RUNNING, option

if TYPE_CHECKING:
    from cactus_decoding import Request
    from cactus_decoding.core.policy.relaxation import RelaxationPolicy
    from cactus_decoding.core.policy.vocabulary import Vocabulary
    from cactus_decoding.lab.evaluation.runs.summary import RunSummary
    from cactus_decoding.lab.frontier.calibrate import Speeds
    from cactus_decoding.lab.frontier.frontier import Frontier
    from cactus_decoding.lab.frontier.recorded_rows import RecordedRows
    from cactus_decoding.lab.frontier.relaxations import Relaxation

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus calibrate --max-nats 0.01 --rows frontier.safetensors\n\n"
    "cactus calibrate --max-nats 0.01 --rows frontier.safetensors --protect digits\n\n"
    "cactus calibrate --max-score-drop 0.01 --results results.jsonl --task word_problems"
)
NATS, SCORE = "By nats (--max-nats)", "By score (--max-score-drop)"
LENGTHS = (0, 1, 2, 3, 4, 6, 8, 10, 12, 16, 20)


@options.request_options("protection", several=("protect",))
def calibrate(
    *,
    max_nats: Annotated[float | None, option(
        "Mean KL(emitted‖target) per visited position that a rule may cost, computed exactly.", "NATS", NATS,
        shown="none", min=0)] = None,
    rows_file: Annotated[Path | None, option(
        "Rows that cactus frontier recorded; chat and system message are theirs.", "FILE", NATS, flag="--rows",
        shown="none")] = None,
    family: Annotated[list[str] | None, option(
        "Rule family that may be recommended; may be given several times.", "NAME", NATS, shown="all")] = None,
    rule: Annotated[str | None, option(
        "A rule that may be recommended beside the families, with its knobs as given.", "RULE", NATS,
        shown="none")] = None,
    num_speculative_tokens: Annotated[int, option(
        "Proposals per step that you use now, to compare with the best length.", "N", NATS, min=0)] = 6,
    rounds: Annotated[int, option(
        "Answers that each rule and draft length is timed on, side by side.", "N", NATS, min=2)] = 10,
    max_score_drop: Annotated[float | None, option(
        "How much lower than lossless the score may be, with 95 % confidence.", "P", SCORE, shown="none", min=0,
        max=1)] = None,
    results_file: Annotated[Path | None, option(
        "Result file of cactus eval, with lossless at several draft lengths.", "FILE", SCORE, flag="--results",
        shown="none")] = None,
    task: Annotated[str, option("Which task of the result file counts.", "TASK", SCORE)] = "word_problems",
    settings: options.Settings,
    output: Annotated[Path | None, option(
        "Write the recommendation and its evidence here, as JSON.", "FILE", OUTPUT, shown="none")] = None,
    memory: Annotated[int, option("Memory for an audit's work, in MiB.", "MIB", RUNNING, min=1)] = 512,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Recommend a rule, its knob, protection and length for a limit, with evidence, or say that lossless is better.

    Asks which setting to take, from what 'cactus frontier' (nats) or 'cactus eval' (scores) recorded. What to try
    'cactus diagnose' says. Limits on nats hold exactly at the recorded positions; speed is estimated from steps on this
    machine.
    """
    from cactus_decoding import parse_rule

    rule = None if rule is None else str(parse_rule(rule))  # first, as a mistyped name needs no torch
    from cactus_decoding.core.files.writing import check_writable
    from cactus_decoding.lab.frontier.relaxations import parse_policies

    protect = settings.pop("protect")
    policies = parse_policies(protect or [], **settings) if protect or any(settings.values()) else None
    if (max_nats is None) == (max_score_drop is None):
        raise ValueError("give either --max-nats (with --rows) or --max-score-drop (with --results)")
    check_writable(output, inputs=[rows_file, results_file])
    if max_nats is not None:
        if rows_file is None:
            raise ValueError("--max-nats needs --rows, a file that 'cactus frontier --output frontier.json' records")
        searched = family or [], [] if rule is None else [rule], policies
        result = _by_nats(max_nats, rows_file, searched, num_speculative_tokens, rounds, memory * 2**20, threads)
    else:
        assert max_score_drop is not None
        if results_file is None:
            raise ValueError("--max-score-drop needs --results, a file that 'cactus eval' writes")
        result = _by_score(max_score_drop, results_file, task, policies)
    _keep(output, result)


def _keep(output: Path | None, result: dict[str, Any]) -> None:
    from cactus_decoding.core.files.writing import as_json, write_atomically

    if output is not None:
        write_atomically(output, as_json(result) + "\n")


def _by_nats(
    max_nats: float,
    path: Path,
    searched: tuple[list[str], list[str], list[RelaxationPolicy] | None],
    current: int,
    rounds: int,
    memory: int,
    threads: int | None,
) -> dict[str, Any]:
    from cactus_decoding.cli.frontier import table_of
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.lab.frontier.calibrate import as_result, loosest_within, recommendation, recommended
    from cactus_decoding.lab.frontier.frontier import Frontier
    from cactus_decoding.lab.frontier.recorded_rows import read_rows
    from cactus_decoding.lab.frontier.relaxations import asking, parse_families

    families = parse_families(*searched[:2])
    rows = read_rows(path)
    max_length = int(rows.settings["num_speculative_tokens"])
    if current > max_length:
        raise ValueError(
            f"--num-speculative-tokens must be at most {max_length}, the proposals per step in {path}, but is {current}"
        )
    policies = searched[2] or _default_policies(rows)
    options.prepare(threads, small=rows.settings["target"] == "bundled")
    measured = Frontier(rows, memory, _vocabulary(rows, policies))
    for policy in policies:
        measured.relaxable(policy)  # raises before any work
    lossless = measured.measure("lossless", "lossless")
    found, curves = [], list(product(families, policies))
    with counting("Looking for the best knob", len(curves)) as report:
        for done, (family, policy) in enumerate(curves, start=1):
            found.append(loosest_within(measured, family, max_nats, policy))
            report(done, f"{family.label} {policy}".rstrip())
    candidates = sorted(filter(None, found), key=lambda point: -point.acceptance.value)
    chosen = candidates[0] if candidates and candidates[0].acceptance.value > lossless.acceptance.value else None
    compared = None if chosen is None else _speeds(measured, chosen.relaxation, current, rounds)
    text = recommendation(chosen, lossless, max_nats, compared, current)
    flags = options.flags_of(asking(_request_of(rows), *recommended(compared, current)))
    arguments = {"max_nats": max_nats, "rows": str(path), "families": [each.name for each in families]}
    arguments |= {"num_speculative_tokens": current, "rounds": rounds, "protect": [each.as_dict() for each in policies]}
    about = {"flags": flags, "settings": dict(rows.settings), "visited": rows.positions}
    about |= {"provenance": provenance(arguments)}
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 140)
    console.print(f"[bold]Recommended:[/bold] {escape(text)}", soft_wrap=True)
    console.print(f"[bold]Use:[/bold] {escape(flags)}", soft_wrap=True)
    console.print(table_of([lossless, *candidates], f"Best of each family within {max_nats:g} nats per position"))
    if compared is not None:
        console.print(_speed_table(compared))
    return as_result([lossless, *candidates], chosen, compared, text, about)


def _default_policies(rows: RecordedRows) -> list[RelaxationPolicy]:
    """Return a policy without protection, and one with digits protected if the task's answers are numbers."""
    from cactus_decoding.lab.evaluation.tasks.sources import parse_task
    from cactus_decoding.lab.frontier.relaxations import NONE, answers_are_numbers, parse_policies

    return parse_policies([NONE, *(["digits"] if answers_are_numbers(parse_task(rows.settings["task"])) else [])])


def _vocabulary(rows: RecordedRows, policies: list[RelaxationPolicy]) -> Vocabulary | None:
    from cactus_decoding.core.policy.vocabulary import Vocabulary
    from cactus_decoding.lab.evaluation.chat import tokenizer_of

    if all(policy.protection is None for policy in policies):
        return None
    return Vocabulary.of(tokenizer_of(rows.settings["target"]), rows.target.vocabulary)


def _request_of(rows: RecordedRows) -> Request:
    from cactus_decoding import Request
    from cactus_decoding.core.spelling import importing_nothing

    own = ("task", "target", "draft", "chat", "system", "positions", "num_speculative_tokens", "max_new_tokens")
    with importing_nothing():  # whatever a file says
        return Request.from_dict({name: value for name, value in rows.settings.items() if name not in own})


def _speeds(measured: Frontier, relaxation: Relaxation, current: int, rounds: int) -> Speeds:
    """Time steps of lossless and of a relaxation at several draft lengths, on the pair that the rows are from."""
    from cactus_decoding import load_pair
    from cactus_decoding.lab.evaluation.tasks.sources import recorded_task
    from cactus_decoding.lab.frontier.calibrate import speeds
    from cactus_decoding.lab.frontier.recorded_rows import time_steps
    from cactus_decoding.lab.frontier.relaxations import LOSSLESS

    settings = measured.rows.settings
    pair = load_pair(settings["target"], settings["draft"], kept_prompts=0)
    asked = recorded_task(settings, pair.tokenizer)
    prompts = [problem.prompt for problem in asked.problems[:rounds]]
    max_length = int(settings["num_speculative_tokens"])
    lengths = sorted({*(length for length in LENGTHS if length <= max_length), max_length, current})
    timed = [(each, length) for length in lengths for each in (LOSSLESS, relaxation) if length or each == LOSSLESS]
    with counting("Timing steps", len(timed) * len(prompts)) as report:
        times = time_steps(pair, prompts, timed, _request_of(measured.rows), report=report)
    times |= {(relaxation, length): times[LOSSLESS, length] for length in lengths if length == 0}  # nothing is verified
    return speeds(measured, relaxation, times, current)


def _speed_table(compared: Speeds) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, title_justify="left",
        title="Estimated milliseconds per token on this machine (95 % interval); * best length",
    )  # fmt: skip
    table.add_column("proposals", justify="right")
    for speed in (compared.lossless, compared.rule):
        table.add_column(escape(str(speed.relaxation)), justify="right", overflow="fold")
    for place, length in enumerate(compared.lossless.lengths):
        values = []
        for speed in (compared.lossless, compared.rule):
            value, low, high = (1000 * x for x in speed.seconds[place])
            star = " *" if place == speed.best else "  "
            ends = f" ({low:.2f}–{high:.2f})" if speed.seconds[place].has_ends else ""
            values.append(f"{value:.2f}{ends}{star}")
        table.add_row(str(length), *values)
    return table


def _by_score(max_drop: float, path: Path, task: str, policies: list[RelaxationPolicy] | None) -> dict[str, Any]:
    from cactus_decoding.cli.evaluation_table import table
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.lab.evaluation.runs.results import read_results
    from cactus_decoding.lab.evaluation.runs.summary import summarise
    from cactus_decoding.lab.frontier.calibrate import advise

    found = advise(_protecting(summarise(read_results(path)), policies), task, max_drop)
    console = Console(highlight=False)
    for advice in found:
        config = advice.config
        where = (
            f"{config.task}, {config.target} with {config.draft}, temperature {config.request.sampling.temperature:g}"
        )
        console.print(f"[bold]Recommended[/bold] ({escape(where)}): {escape(advice.text)}", soft_wrap=True)
        console.print(
            f"[bold]Use:[/bold] {escape(options.flags_of(advice.recommended.config.request))}", soft_wrap=True
        )
        shown = [advice.baseline, *([advice.chosen] if advice.chosen is not None else [])]
        for part in table(shown, every_metric=True):
            console.print(part)
    return {
        "schema": 1,
        "kind": "calibration",
        "advice": [
            {
                "verdict": advice.text,
                "flags": options.flags_of(advice.recommended.config.request),
                "faster_than_lossless": advice.faster,
                "chosen": None if advice.chosen is None else advice.chosen.as_dict(),
                "baseline": advice.baseline.as_dict(),
                "settings_measured": len(advice.candidates),
                "settings_within_limit": len(advice.within),
            }
            for advice in found
        ],
        "provenance": provenance(
            {"max_score_drop": max_drop, "results": str(path), "task": task}
            | {"protect": None if policies is None else [each.as_dict() for each in policies]}
        ),
    }


def _protecting(summaries: list[RunSummary], policies: list[RelaxationPolicy] | None) -> list[RunSummary]:
    """Return the lossless runs, and those of other rules that protect what one of some policies protects."""
    wanted = None if policies is None else [policy.protection for policy in policies]
    return [
        summary
        for summary in summaries
        if wanted is None or summary.config.rule == "lossless" or summary.config.request.policy.protection in wanted
    ]
