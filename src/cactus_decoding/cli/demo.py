"""`cactus demo`: plain sampling, lossless speculation and Cactus on the same held-out problems."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.display import number, show
from cactus_decoding.cli.progress import counting

if TYPE_CHECKING:
    from cactus_decoding import Pair, Request, Response
    from cactus_decoding.evaluation.score import Score
    from cactus_decoding.zoo.word_problems import WordProblem

EXAMPLES = (
    "[bold]Examples[/bold]\n\ncactus demo\n\ncactus demo --problems 200 --delta 0.1 --delta 1\n\ncactus demo --json"
)


@dataclass
class Way:
    """One way to sample, and how it did."""

    name: str
    request: Request
    score: Score
    texts: list[str] = field(default_factory=list)

    def stream(self, pair: Pair, problem: WordProblem, seed: int) -> Response:
        """Begin a response to a problem."""
        from cactus_decoding import stream

        return stream(pair, problem.prompt, replace(self.request, seed=seed))

    def as_dict(self) -> dict[str, object]:
        """Return what was done and found, for JSON."""
        asked = self.request.as_dict()
        given = {name: asked[name] for name in ("rule", "num_speculative_tokens")}
        return {"name": self.name} | given | self.score.as_dict() | {"texts": self.texts}


@options.request_options("temperature", "top_p", top_p=0.95)
def demo(
    *,
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="How many held-out problems to answer.")] = 20,
    delta: Annotated[
        list[float] | None,
        typer.Option(metavar="NATS", help="Cactus's budget; given several times, each adds a row.", show_default="0.5"),
    ] = None,
    num_speculative_tokens: options.NumSpeculativeTokens = 6,
    settings: options.Settings,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32, metavar="S", help="Chooses the problems, and the answers' randomness.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout, and nothing else.")] = False,
    threads: options.Threads = None,
) -> None:
    """Answer word problems that the bundled models never saw, in three ways, and compare right answers and speed."""
    from cactus_decoding import Cactus, FixedLength, Request, load_pair
    from cactus_decoding.arguments.checks import check_integer
    from cactus_decoding.evaluation.score import Score
    from cactus_decoding.zoo.word_problems import word_problems

    check_integer("num_speculative_tokens", num_speculative_tokens, 1)
    lossless = Request.from_dict(settings | {"num_speculative_tokens": num_speculative_tokens})
    requests = {
        "plain sampling": replace(lossless, num_speculative_tokens=FixedLength(0)),
        "lossless speculation": lossless,
    }
    requests |= {f"Cactus, delta={nats:g}": replace(lossless, rule=Cactus(nats)) for nats in delta or [0.5]}
    ways = [Way(name, request, Score()) for name, request in requests.items()]
    options.prepare(threads, small=True)
    drawn = list(islice(word_problems("test", seed=seed), problems))
    pair = load_pair()

    console = Console(highlight=False)
    last = ways[-1]
    first = last.stream(pair, drawn[0], seed)
    if as_json:
        list(first)  # also without an audience: the first response of a process is slower than the others
    else:
        console.print(f"[bold]Question:[/bold] {drawn[0].question}")
        console.print(f"[bold]Answer[/bold] ({last.request.rule}):")
        show(first, pair.tokenizer)
        console.print(f"[bold]Right answer:[/bold] {drawn[0].answer}\n")
    answer(pair, drawn, ways, seed)
    if as_json:
        arguments = {"problems": problems, "split": "test", "seed": seed} | vars(lossless.sampling)
        typer.echo(json.dumps({"rows": [way.as_dict() for way in ways], "arguments": arguments}))
        return
    console.print(_table(ways, problems))
    console.print(_what_is_seen(ways[1], last))


def answer(pair: Pair, problems: list[WordProblem], ways: list[Way], seed: int) -> None:
    """Answer every problem in every way, one after another, so that all see the same load of the machine."""
    with counting("Answering", len(problems) * len(ways)) as report:
        for i, problem in enumerate(problems):
            for j, way in enumerate(ways):
                response = way.stream(pair, problem, seed + i)
                for _ in response:
                    pass
                way.score.add(problem, response)
                way.texts.append(response.text)
                report(i * len(ways) + j + 1)


def _table(ways: list[Way], problems: int) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title=f"{problems} held-out problems",
        title_justify="left",
    )
    table.add_column("sampling", no_wrap=True)
    for name in (
        "right\nanswers",
        "acceptance_length",
        "relaxed\ntokens",
        "tokens\nper\nsecond",
        "seconds\nper\nanswer",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for way in ways:
        score, metrics = way.score, way.score.metrics
        table.add_row(
            way.name,
            f"{score.right}/{score.answers}",
            number(metrics.acceptance_length),
            number(metrics.relaxed),
            number(metrics.tokens_per_second, 0),
            number(score.seconds_per_answer, 3),
        )
    return table


def _what_is_seen(lossless: Way, cactus: Way) -> str:
    ours, theirs = cactus.score, lossless.score
    low, high = theirs.interval
    return (
        f"{cactus.name} took {ours.metrics.steps} steps where lossless speculation took {theirs.metrics.steps}, by "
        f"keeping {ours.metrics.relaxed} tokens that the lossless test would have rejected (relaxed). Right answers "
        "differ by chance too: plain sampling and lossless speculation have the same distribution, and "
        f"{theirs.right}/{theirs.answers} is what a true rate of {low:.0%} to {high:.0%} may give."
    )
