"""`cactus report`: a page of result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cactus_decoding.cli import options
from cactus_decoding.cli.options import OUTPUT, option

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus report results.jsonl --output report.html\n\n"
    "cactus report --frontier frontier.json --output report.html\n\n"
    "cactus report plain.jsonl truncated.jsonl --output report.html --markdown table.md --frontier frontier.json"
)


def report(
    output: Annotated[Path, option("The page: one HTML file that needs nothing else.", "FILE", OUTPUT)],
    results: Annotated[list[Path] | None, typer.Argument(
        help="Result files of cactus eval.", metavar="RESULT.jsonl…", show_default=False)] = None,
    markdown: Annotated[Path | None, option(
        "Write the tables here too, as Markdown.", "FILE", OUTPUT, shown="none")] = None,
    frontier: Annotated[Path | None, option(
        "Result file of cactus frontier: adds its picture, and at which kinds of tokens lossless rejects.", "FILE",
        shown="none")] = None,
) -> None:  # fmt: skip
    """Show what rules cost and what they buy: pictures and tables, every number with its interval.

    Needs the extra 'report', which 'make demo' installs.
    """
    from cactus_decoding.core.files.writing import check_writable, write_atomically
    from cactus_decoding.lab.frontier.frontier import read_frontier
    from cactus_decoding.lab.reporting.report import make_report, read_all, report_to_html, to_markdown, verdict

    results = results or []
    if not results and frontier is None:
        raise ValueError("give result files of cactus eval, --frontier with one of cactus frontier, or both")
    check_writable(output, markdown, inputs=[*results, frontier])
    options.check_suffix("--output", output, ".html", ".htm")
    files = read_all(results)
    made = make_report(files, None if frontier is None else (frontier, read_frontier(frontier)))
    page = report_to_html(made)
    write_atomically(output, page)
    if markdown is not None:
        write_atomically(markdown, to_markdown(made))
    for section in made.sections:
        for name, summaries in section.pairs.items():
            typer.echo(f"{section.title}; {name}\n  {verdict(summaries)}")
    typer.echo(f"wrote {output}" + (f" and {markdown}" if markdown is not None else ""))
