"""`cactus demo`: an evaluation of the bundled pair, which says first how long answers take and how many are right."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting, show
from cactus_decoding.cli.options import option
from cactus_decoding.zoo import BUNDLED, LOSSLESS, RELAXED, full_name

if TYPE_CHECKING:
    from cactus_decoding.lab.evaluation.intervals import Interval
    from cactus_decoding.lab.evaluation.plan import Plan
    from cactus_decoding.lab.evaluation.run_config import RunConfig
    from cactus_decoding.lab.evaluation.runs.summary import RunSummary

EXAMPLES = (
    "[bold]Examples[/bold]\n\ncactus demo\n\ncactus demo --problems 200 --rule cactus:delta=1 --top-p 0.95\n\n"
    "cactus demo --json"
)
POINTS = 0.02  # a loss of right answers that a user would want to know of


@options.request_options("rule", "protection", "sampling", rule=RELAXED["rule"], protect=RELAXED["protect"])
def demo(
    *,
    problems: Annotated[int, option("How many held-out problems to answer.", "N", min=1)] = 60,
    settings: options.Settings,
    seed: Annotated[int, option("Of the answers.", "S", min=0, max=2 ** 32)] = 0,
    as_json: Annotated[bool, option("Write one JSON object to stdout, and nothing else.", flag="--json")] = False,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Answer word problems that the bundled models never saw: without a draft, lossless, and relaxed.

    It is 'cactus eval' with settings that suit the bundled pair, and keeps no file.
    """
    from cactus_decoding import load_pair, stream
    from cactus_decoding.cli.evaluation_table import table
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import as_json as to_json
    from cactus_decoding.lab.evaluation.intervals import check_scipy
    from cactus_decoding.lab.evaluation.plan import num_answers, run_plan
    from cactus_decoding.lab.evaluation.runs.summary import summarise
    from cactus_decoding.zoo.word_problems import EXAMPLES as SHOWN

    check_scipy()
    configs = configs_of(settings, problems, seed)
    options.prepare_process(threads, small=True)
    console = Console(highlight=False)
    if not as_json:
        pair, request = load_pair(), configs["relaxed"].request
        response = stream(pair, SHOWN[0].prompt, request.replace(seed=seed))  # which may be refused
        console.print(f"[bold]Question:[/bold] {SHOWN[0].question}")
        console.print(f"[bold]Answer[/bold] ({escape(str(request.rule))}, {escape(str(request.policy))}):")
        show(response, pair.tokenizer)
        console.print(f"[bold]Right answer:[/bold] {SHOWN[0].answer}\n")
    arguments = {"problems": problems, "seed": seed} | configs["relaxed"].request.as_dict()
    plan = plan_of([*configs.values()], arguments)
    results = run_plan(plan, lambda todo: counting("Answering", num_answers(todo)))
    summaries = dict(zip(configs, summarise(results), strict=True))
    if as_json:
        runs = {name: summary.as_dict() for name, summary in summaries.items()}
        typer.echo(to_json({"runs": runs, "arguments": arguments, "provenance": provenance(arguments)}))
        return
    for name, summary in summaries.items():
        console.print(f"[bold]{escape(TITLES[name])}[/bold]: {escape(sentence(summary))}", soft_wrap=True)
    console.print("", *table([*summaries.values()]), "", too_few(problems), sep="\n", soft_wrap=True)


TITLES = {
    "plain": "Without a draft",
    "lossless": "With a draft, lossless",
    "relaxed": "Relaxed",
    "everywhere": "Relaxed at protected tokens too",
}


def configs_of(settings: options.Settings, problems: int, seed: int) -> dict[str, RunConfig]:
    """Return the runs: each with the number of proposals that suits it, and the last where something is protected."""
    from cactus_decoding import FixedLength, Request
    from cactus_decoding.lab.evaluation.run_config import RunConfig

    relaxed = Request.from_dict(settings | {"num_speculative_tokens": RELAXED["num_speculative_tokens"], "seed": seed})
    everywhere = relaxed.replace(policy=Request().policy)
    lossless = everywhere.replace(
        rule="lossless", num_speculative_tokens=FixedLength(LOSSLESS["num_speculative_tokens"])
    )
    requests = {
        "plain": lossless.replace(num_speculative_tokens=FixedLength(0)),
        "lossless": lossless,
        "relaxed": relaxed,
    }
    if everywhere != relaxed:
        requests["everywhere"] = everywhere
    run = partial(RunConfig, "word_problems", BUNDLED, full_name(BUNDLED), problems=problems)
    return {name: run(request=request) for name, request in requests.items()}


def plan_of(configs: list[RunConfig], arguments: dict[str, object]) -> Plan:
    """Return the plan of the runs, side by side, so that all see the same load of the machine; no file is kept."""
    from cactus_decoding.lab.evaluation.engines.loading import load_engine
    from cactus_decoding.lab.evaluation.plan import Plan
    from cactus_decoding.lab.evaluation.tasks.sources import parse_tasks

    tasks = parse_tasks(["word_problems"], problems=configs[0].problems)
    return Plan(configs, tasks, partial(load_engine, "transformers", BUNDLED, audited=False), arguments=arguments)


def sentence(summary: RunSummary) -> str:
    """Say how long an answer takes, how many are right, and what that is beside lossless at its best."""
    right, answers = summary.group.columns["right"].sum(), summary.config.problems
    said = f"{summary.known('seconds_per_answer').value:.3f} seconds per answer, {right:.0f} of {answers} right."
    config = summary.config
    if config.num_speculative_tokens == 0 or summary.baseline is None:
        return said
    if config.rule == "lossless":
        ratio = summary.known("seconds_ratio_to_target_alone")
        return f"{said} {times(ratio)} of the time without a draft, with the same distribution of answers."
    time, score = summary.known("seconds_ratio"), summary.known("score_difference")
    return f"{said} {times(time)} of lossless's time. {judged(time, score)}"


def times(ratio: Interval) -> str:
    return f"{ratio.value:.2f}{f' ({ratio.low:.2f} to {ratio.high:.2f})' if ratio.has_ends else ''}"


def judged(time: Interval, score: Interval) -> str:
    """Say what two 95 % intervals mean: of the time relative to lossless, and of the difference in right answers.

    >>> from cactus_decoding.lab.evaluation.intervals import Interval
    >>> judged(Interval(0.9, 0.88, 0.93), Interval(0.005, -0.04, 0.05))
    'It is faster, with no loss that this run can see.'
    >>> judged(Interval(1.1, 1.05, 1.2), Interval(-0.1, -0.15, -0.05))
    'It is no faster on this machine, and it loses right answers, more than chance explains.'
    """
    if time.has_ends and time.high < 1:
        speed = "It is faster"
    elif time.has_ends and time.low > 1:
        speed = "It is no faster on this machine"
    else:
        speed = "This run cannot tell whether it is faster"
    if score.high < 0:
        but = "but" if speed == "It is faster" else "and"
        return f"{speed}, {but} it loses right answers, more than chance explains."
    return f"{speed}, with no loss that this run can see."


def too_few(problems: int) -> str:
    """Return what so few problems cannot tell.

    >>> too_few(20)[:96]
    '20 problems cannot tell 2 points: even if all answers agreed, 16.8 points could not be excluded.'
    """
    from cactus_decoding.lab.evaluation.intervals import INTERVAL_TAIL, problems_to_show

    needed = problems_to_show(POINTS)
    if problems >= needed:
        return f"{problems} problems exclude a loss of {100 * POINTS:g} points only where nearly all answers agree."
    return (
        f"{problems} problems cannot tell {100 * POINTS:g} points: even if all answers agreed, "
        f"{100 * (1 - INTERVAL_TAIL ** (1 / problems)):.1f} points could not be excluded. It takes {needed} problems "
        f"(--problems {needed}) in which nearly all agree."
    )
