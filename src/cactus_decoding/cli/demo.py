"""`cactus demo`: plain sampling, lossless speculation and Cactus on the same held-out problems."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.display import number, show
from cactus_decoding.cli.progress import counting
from cactus_decoding.evaluation.score import Score

if TYPE_CHECKING:
    from cactus_decoding import Pair, Response, SamplingParams
    from cactus_decoding.zoo.word_problems import WordProblem

EXAMPLES = (
    "[bold]Examples[/bold]\n\ncactus demo\n\ncactus demo --problems 200 --delta 0.1 --delta 1\n\ncactus demo --json"
)


@dataclass
class Row:
    """One way to sample, and how it did."""

    name: str
    rule: str
    num_speculative_tokens: int
    sampling: SamplingParams
    score: Score = field(default_factory=Score)
    texts: list[str] = field(default_factory=list)

    def stream(self, pair: Pair, problem: WordProblem, seed: int) -> Response:
        """Begin a response to a problem."""
        from cactus_decoding import stream

        return stream(
            pair,
            problem.prompt,
            rule=self.rule,
            num_speculative_tokens=self.num_speculative_tokens,
            temperature=self.sampling.temperature,
            top_p=self.sampling.top_p,
            seed=seed,
        )

    def as_dict(self) -> dict[str, object]:
        """Return what was done and found, for JSON."""
        given = {"name": self.name, "rule": self.rule, "num_speculative_tokens": self.num_speculative_tokens}
        return given | self.score.as_dict() | {"texts": self.texts}


def demo(
    problems: Annotated[int, typer.Option(min=1, metavar="N", help="How many held-out problems to answer.")] = 20,
    delta: Annotated[
        list[float] | None,
        typer.Option(metavar="NATS", help="Cactus's budget; given several times, each adds a row.", show_default="0.5"),
    ] = None,
    num_speculative_tokens: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Tokens that the draft proposes per step.", rich_help_panel=options.RUNNING
        ),
    ] = 6,
    temperature: options.Temperature = 1.0,
    top_p: options.TopP = 0.95,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32, metavar="S", help="Chooses the problems, and the answers' randomness.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object to stdout, and nothing else.")] = False,
    threads: options.Threads = None,
) -> None:
    """Answer word problems that the bundled models never saw, in three ways, and compare right answers and speed."""
    from cactus_decoding import Cactus, SamplingParams, load_pair
    from cactus_decoding.zoo.word_problems import word_problems

    sampling = SamplingParams(temperature, top_p=top_p)
    rules = [Cactus(nats) for nats in (delta or [0.5])]
    options.prepare(threads, small=True)
    rows = [
        Row("plain sampling", "lossless", 0, sampling),
        Row("lossless speculation", "lossless", num_speculative_tokens, sampling),
    ]
    rows += [Row(f"Cactus, delta={r.delta:g}", str(r), num_speculative_tokens, sampling) for r in rules]
    drawn = list(islice(word_problems("test", seed=seed), problems))
    pair = load_pair()

    console = Console(highlight=False)
    last = rows[-1]
    first = last.stream(pair, drawn[0], seed)
    if as_json:
        list(first)  # also without an audience: the first response of a process is slower than the others
    else:
        console.print(f"[bold]Question:[/bold] {drawn[0].question}")
        console.print(f"[bold]Answer[/bold] ({last.rule}):")
        show(first, pair.tokenizer)
        console.print(f"[bold]Right answer:[/bold] {drawn[0].answer}\n")
    answer(pair, drawn, rows, seed)
    if as_json:
        arguments = {"problems": problems, "split": "test", "seed": seed} | vars(sampling)
        typer.echo(json.dumps({"rows": [row.as_dict() for row in rows], "arguments": arguments}))
        return
    console.print(_table(rows, problems))
    console.print(_what_is_seen(rows[1], last))


def answer(pair: Pair, problems: list[WordProblem], rows: list[Row], seed: int) -> None:
    """Answer every problem in every row's way, one way after another, so that all see the same load of the machine."""
    with counting("Answering", len(problems) * len(rows)) as report:
        for i, problem in enumerate(problems):
            for j, row in enumerate(rows):
                response = row.stream(pair, problem, seed + i)
                for _ in response:
                    pass
                row.score.add(problem, response)
                row.texts.append(response.text)
                report(i * len(rows) + j + 1)


def _table(rows: list[Row], problems: int) -> Table:
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
    for row in rows:
        score, metrics = row.score, row.score.metrics
        table.add_row(
            row.name,
            f"{score.right}/{score.answers}",
            number(metrics.acceptance_length),
            number(metrics.relaxed),
            number(metrics.tokens_per_second, 0),
            number(score.seconds_per_answer, 3),
        )
    return table


def _what_is_seen(lossless: Row, cactus: Row) -> str:
    ours, theirs = cactus.score, lossless.score
    low, high = theirs.interval
    return (
        f"{cactus.name} took {ours.metrics.steps} steps where lossless speculation took {theirs.metrics.steps}, by "
        f"keeping {ours.metrics.relaxed} tokens that the lossless test would have rejected (relaxed). Right answers "
        "differ by chance too: plain sampling and lossless speculation have the same distribution, and "
        f"{theirs.right}/{theirs.answers} is what a true rate of {low:.0%} to {high:.0%} may give."
    )
