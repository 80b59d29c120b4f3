"""`cactus report`: result files as one page with pictures, and as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cactus_decoding.cli import options

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    "cactus report results.jsonl --output report.html\n\n"
    "cactus report plain.jsonl truncated.jsonl --output report.html --markdown table.md --frontier frontier.json"
)


def report(
    results: Annotated[list[Path], typer.Argument(metavar="RESULT.jsonl…", help="Result files of cactus eval.")],
    output: Annotated[
        Path,
        typer.Option(metavar="FILE", dir_okay=False, help="The page: one HTML file that needs nothing else.",
                     rich_help_panel=options.OUTPUT),
    ],
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, show_default="none", rich_help_panel=options.OUTPUT,
                     help="Write the tables here too, as Markdown."),
    ] = None,
    frontier: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, show_default="none",
                     help="Result file of cactus frontier, whose picture is added."),
    ] = None,
) -> None:  # fmt: skip
    """Show what rules cost and what they buy: pictures and tables, every number with its interval.

    Needs the extra 'report', which 'make demo' installs.
    """
    from cactus_decoding.evaluation.frontier.frontier_file import read_frontier
    from cactus_decoding.evaluation.reporting.report import make_report, read_all
    from cactus_decoding.evaluation.reporting.report_text import to_html, to_markdown
    from cactus_decoding.files.writing import check_writable, write_atomically

    check_writable(output, markdown, inputs=[*results, frontier])
    options.check_suffix("--output", output, ".html", ".htm")
    files = read_all(results)
    made = make_report(files, None if frontier is None else (frontier, read_frontier(frontier)))
    page = to_html(made)
    write_atomically(output, page)
    if markdown is not None:
        write_atomically(markdown, to_markdown(made))
    typer.echo(f"wrote {output}" + (f" and {markdown}" if markdown is not None else ""))
