"""`cactus demo`: relaxing where no answer depends on it, relaxing everywhere, and a budget, on held-out problems."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cactus_decoding.cli import options
from cactus_decoding.cli.demo_report import DemoComparison, Way
from cactus_decoding.cli.display import counting, show
from cactus_decoding.cli.options import BUDGET, RUNNING, option
from cactus_decoding.zoo import BUNDLED, LOSSLESS, RELAXED, WEAK_DRAFT, full_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cactus_decoding import Pair, Request
    from cactus_decoding.zoo.word_problems import WordProblem


EXAMPLES = (
    "[bold]Examples[/bold]\n\ncactus demo\n\ncactus demo --problems 200 --rule cactus:delta=1 --budget 0.1\n\n"
    "cactus demo --delta 0.1 --delta 1 --top-p 0.95\n\ncactus demo --json"
)


@options.request_options("rule", "protection", "sampling", rule=RELAXED["rule"], protect=RELAXED["protect"])
def demo(
    *,
    problems: Annotated[int, option("How many held-out problems to answer.", "N", min=1)] = 60,
    delta: Annotated[list[float] | None, option(
        "Another row of Cactus with this delta; may be given several times.", "NATS", shown="none")] = None,
    num_speculative_tokens: Annotated[int | None, option(
        "Tokens that the draft proposes per step.", "N", RUNNING, shown="each way's best")] = None,
    budget: Annotated[float, option(
        "Of each response, in the row that has one.", "NATS", BUDGET, min=0, max=1000)] = 0.02,
    settings: options.Settings,
    seed: Annotated[int, option("Chooses the problems, and the answers' randomness.", "S", min=0, max=2 ** 32)] = 0,
    as_json: Annotated[bool, option("Write one JSON object to stdout, and nothing else.", flag="--json")] = False,
    verbose: Annotated[bool, option(
        "Also ask with a weak draft, without and with a budget, and show intervals and a broken answer.",
        flag="--verbose")] = False,
    threads: options.Threads = None,
) -> None:  # fmt: skip
    """Answer word problems that the bundled models never saw: without a draft, lossless, and relaxed."""
    from cactus_decoding import load_pair, stream
    from cactus_decoding.cli.demo_report import beside_lossless, report
    from cactus_decoding.core.files.provenance import provenance
    from cactus_decoding.core.files.writing import as_json as to_json
    from cactus_decoding.lab.evaluation.intervals import check_installed
    from cactus_decoding.zoo.word_problems import EXAMPLES as SHOWN
    from cactus_decoding.zoo.word_problems import word_problems

    check_installed()
    ways = ways_of(settings, num_speculative_tokens, budget, delta or [])
    options.prepare(threads, small=True)
    drawn = list(islice(word_problems("test", seed=seed), problems))
    asked = ways.all if as_json or verbose else ways.main
    pairs = {name: load_pair(draft=name, kept_prompts=0) for name in dict.fromkeys(way.draft for way in asked)}
    pair = pairs[ways.protected.draft]

    console = Console(highlight=False)
    shown, request = SHOWN[0], ways.protected.request.replace(seed=seed)
    first = stream(pair, shown.prompt, request)
    if as_json:
        list(first)  # even if nobody sees it, as the first response of a process is slower than the others
    else:
        console.print(f"[bold]Question:[/bold] {shown.question}")
        console.print(f"[bold]Answer[/bold] ({request.rule}, {request.policy}):")
        show(first, pair.tokenizer)
        console.print(f"[bold]Right answer:[/bold] {shown.answer}\n")
    answer(pairs, drawn, asked, seed)
    if as_json:
        arguments = {"problems": problems, "split": "test", "seed": seed} | vars(ways.plain.request.sampling)
        rows = [way.as_dict() for way in ways.all]
        beside = {way.name: beside_lossless(way, ways.lossless) for way in ways.relaxed}
        end = {"beside_lossless": beside, "arguments": arguments, "provenance": provenance(arguments)}
        typer.echo(to_json({"rows": rows} | end))
        return
    for part in report(ways, drawn, console, verbose=verbose):
        console.print(part)


def ways_of(settings: options.Settings, length: int | None, budget: float, deltas: Sequence[float]) -> DemoComparison:
    """Return what is compared.

    ``settings`` are those of the protected way; other ways share all but the rule and its protection. Without a length
    each way has its best one. ``deltas`` are those of further rows of Cactus.
    """
    from cactus_decoding import Budget, Cactus, FixedLength, Request
    from cactus_decoding.core.checks import check_integer
    from cactus_decoding.lab.evaluation.score import Score

    default = full_name(BUNDLED)
    lengths = [each["num_speculative_tokens"] for each in (LOSSLESS, RELAXED)] if length is None else [length] * 2
    for each in lengths:
        check_integer("num_speculative_tokens", each, 1)
    protected = Request.from_dict(settings | {"num_speculative_tokens": lengths[1]})
    lossless = Request(num_speculative_tokens=lengths[0], sampling=protected.sampling)
    unprotected = protected.replace(policy=lossless.policy)

    def way(name: str, request: Request, draft: str = default) -> Way:
        return Way(name, draft, request, Score())

    return DemoComparison(
        way("plain sampling", lossless.replace(num_speculative_tokens=FixedLength(0))),
        way("lossless", lossless),
        way("relaxed, protected", protected),
        way("relaxed everywhere", unprotected),
        way("weak draft, same", unprotected, WEAK_DRAFT),
        way("… on a budget", unprotected.replace(budget=Budget(budget)), WEAK_DRAFT),
        [way(f"Cactus, delta={nats:g}", unprotected.replace(rule=Cactus(nats))) for nats in deltas],
    )


def answer(pairs: Mapping[str, Pair], problems: Sequence[WordProblem], ways: Sequence[Way], seed: int) -> None:
    """Answer every problem in every way, one after another, so that all ways see the same load of the machine."""
    with counting("Answering", len(problems) * len(ways)) as report:
        for i, problem in enumerate(problems):
            for j, way in enumerate(ways):
                response = way.stream(pairs[way.draft], problem, seed + i)
                for _ in response:
                    pass
                way.add(problem, response)
                report(i * len(ways) + j + 1)
