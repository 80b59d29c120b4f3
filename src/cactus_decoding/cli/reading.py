"""Commands that show what there is: `cactus rules`, `cactus report`, `cactus trace` and `cactus show`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cactus_decoding.cli import options
from cactus_decoding.cli.generate import ASK
from cactus_decoding.cli.options import OUTPUT, option

if TYPE_CHECKING:
    from cactus_decoding.core.policy.importance import Importance
    from cactus_decoding.core.policy.vocabulary import Vocabulary


def rules() -> None:
    """List the acceptance rules, how to spell them, and what each guarantees per position."""
    from cactus_decoding.core.rules import RULES

    *others, last = (name for name, rule in RULES.items() if rule.judges_untempered)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("rule", style="bold")
    table.add_column("spelling")
    table.add_column("guarantee at each position", ratio=1)
    for name, rule in RULES.items():
        for preset in rule.presets:
            table.add_row(name, preset.spelling, preset.guarantee)
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "h is the relaxed target, the distribution that a proposal is tested against. Parameters follow the name, as "
        f"in cactus:delta=0.5,solver=exact. At temperature 0 all but {', '.join(others)} and {last} accept only the "
        "target's most likely token. A budget (cactus generate --budget) bounds what a rule does to a whole response."
    )


REPORT_EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus report results.jsonl --output report.html\n\n"
    "cactus report plain.jsonl truncated.jsonl --output report.html --markdown table.md --frontier frontier.json"
)


def report(
    results: Annotated[list[Path], typer.Argument(help="Result files of cactus eval.", metavar="RESULT.jsonl…")],
    output: Annotated[Path, option("The page: one HTML file that needs nothing else.", "FILE", OUTPUT)],
    markdown: Annotated[Path | None, option(
        "Write the tables here too, as Markdown.", "FILE", OUTPUT, shown="none")] = None,
    frontier: Annotated[Path | None, option(
        "Result file of cactus frontier, whose picture is added.", "FILE", shown="none")] = None,
) -> None:  # fmt: skip
    """Show what rules cost and what they buy: pictures and tables, every number with its interval.

    Needs the extra 'report', which 'make demo' installs.
    """
    from cactus_decoding.core.files.writing import check_writable, write_atomically
    from cactus_decoding.lab.frontier.frontier import read_frontier
    from cactus_decoding.lab.reporting.report import make_report, read_all, to_html, to_markdown

    check_writable(output, markdown, inputs=[*results, frontier])
    options.check_suffix("--output", output, ".html", ".htm")
    files = read_all(results)
    made = make_report(files, None if frontier is None else (frontier, read_frontier(frontier)))
    page = to_html(made)
    write_atomically(output, page)
    if markdown is not None:
        write_atomically(markdown, to_markdown(made))
    typer.echo(f"wrote {output}" + (f" and {markdown}" if markdown is not None else ""))


TRACE_EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    f"{ASK} --rule cactus:delta=1 --trace nuts.jsonl\n\n"
    "cactus trace nuts.jsonl\n\n"
    "cactus trace nuts.jsonl --output for-a-colleague.html"
)


def trace(
    file: Annotated[Path, typer.Argument(help="Trace of cactus generate --trace.", metavar="TRACE.jsonl")],
    output: Annotated[Path | None, option(
        "The page: one HTML file that needs nothing else.", "FILE", OUTPUT,
        shown="beside the trace, ending in .html")] = None,
) -> None:  # fmt: skip
    """Show a response token by token: what both models and the rule thought there, and what it cost.

    Needs the extra 'playground' or 'report', which 'make demo' installs.
    """
    from cactus_decoding.core.files.writing import check_writable, part_of, write_atomically

    page = file.with_suffix(".html") if output is None else output
    check_writable(page, inputs=[file])
    options.check_suffix("--output", output, ".html", ".htm")
    if not part_of(file).exists():  # of which reading would tell
        file.stat()  # raises where there is none, before torch is imported
    from cactus_decoding.lab.tracing import read_trace
    from cactus_decoding.lab.tracing.page import to_html

    write_atomically(page, to_html(read_trace(file, rows=False)))
    typer.echo(f"wrote {page}")


SHOW_EXAMPLES = (
    "[bold]Examples[/bold]\n\ncactus show importance.safetensors\n\ncactus show importance.safetensors --top 50 --json"
)
SIDES = {"target": "the target may write", "draft": "the draft may write"}


def show(
    file: Annotated[str, typer.Argument(
        help="A file of cactus learn-importance, or a bundled draft's name.", metavar="FILE")],
    top: Annotated[int, option("How many tokens to name at each end.", "N", min=1)] = 15,
    tokenizer: Annotated[str | None, option(
        "Whose tokenizer knows what the tokens say.", "MODEL", shown="the target that the file names")] = None,
    as_json: Annotated[bool, option("Write one JSON object to stdout, and nothing else.", flag="--json")] = False,
) -> None:  # fmt: skip
    """Show a learned importance: its training, how well it tells positions apart, and the tokens that matter to it."""
    from cactus_decoding.core.files.writing import as_json as to_json
    from cactus_decoding.core.policy.importance import read_importance

    importance = read_importance(file)
    vocabulary = _vocabulary(importance, tokenizer)
    tokens = {side: _ends(importance, vocabulary, side, top) for side in SIDES}
    found = {
        "target": importance.about.get("target"),
        "draft": importance.about.get("draft"),
        "about": dict(importance.about),
        "vocabulary": {"tokens": len(importance.target_weights), "fingerprint": importance.vocabulary},
        "intercept": importance.intercept,
        "tokens": tokens,
    }
    if as_json:
        typer.echo(to_json(found))
        return
    console = Console(highlight=False)
    for line in _lines(importance.about):
        console.print(line, soft_wrap=True)
    for side, what in SIDES.items():
        console.print(_token_table(tokens[side], what))


def _vocabulary(importance: Importance, tokenizer: str | None) -> Vocabulary:
    """Return what the tokens say; raise `ValueError` for a tokenizer with others."""
    from cactus_decoding import zoo
    from cactus_decoding.core.policy.vocabulary import Vocabulary
    from cactus_decoding.engines.transformers.loading import load_tokenizer, only_cached
    from cactus_decoding.engines.transformers.names import check_model_name

    name = tokenizer or importance.about.get("target")
    if not isinstance(name, str):
        raise ValueError("the file does not say whose tokens these are: give --tokenizer")
    if name != "bundled":
        check_model_name("target", name, ["bundled"])
    model = zoo.path("target") if name == "bundled" else name
    loaded = load_tokenizer("target", model, local=only_cached("target", model))
    vocabulary = Vocabulary.of(loaded, len(importance.target_weights))
    importance.fit(vocabulary)
    return vocabulary


def _ends(importance: Importance, vocabulary: Vocabulary, side: str, top: int) -> dict[str, list[dict[str, Any]]]:
    """Return the tokens of the greatest and of the least weights."""
    weights = getattr(importance, f"{side}_weights")
    order = weights.argsort(descending=True, stable=True).tolist()

    def described(token: int) -> dict[str, Any]:
        return {"token_id": token, "text": vocabulary.texts[token], "weight": weights[token].item()}

    return {"most": [described(i) for i in order[:top]], "least": [described(i) for i in order[: -top - 1 : -1]]}


def _lines(about: Any) -> list[str]:
    """Return what the file was trained on, for people, as far as it says."""
    from cactus_decoding.core.files.jsonl import number_of

    said = [f"[bold]{name}[/bold]: {about[name]}" for name in ("target", "draft", "task") if name in about]
    fit = about.get("fit")
    if isinstance(fit, dict) and fit.keys() >= {"auc", "positions", "problems", "worse"}:
        value, low, high = (number_of(end) for end in fit["auc"])
        ends = "too few for an interval" if math.isnan(low) else f"95 %: {low:.3f} to {high:.3f}"
        said += [
            f"[bold]trained on[/bold]: {fit['positions']} rejected proposals in {fit['problems']} problems, of which "
            f"keeping the proposal spoils {100 * fit['worse']:.1f} % of the continuations",
            f"[bold]ROC AUC[/bold] on problems that it was not fitted to: {value:.3f} ({ends})",
        ]
    return said


def _token_table(ends: dict[str, list[dict[str, Any]]], what: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", title=f"Where {what} …")
    for heading in ("important", "harmless"):
        table.add_column(heading)
        table.add_column("weight", justify="right")
    for most, least in zip(ends["most"], ends["least"], strict=True):
        cells = [(escape(repr(each["text"])), f"{each['weight']:+.2f}") for each in (most, least)]
        table.add_row(*cells[0], *cells[1])
    return table
