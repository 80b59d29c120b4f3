"""`cactus trace`: a trace as a page that can be sent to a colleague."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cactus_decoding.cli import options
from cactus_decoding.cli.generate import ASK

EXAMPLES = (
    "[bold]Examples[/bold]\n\n"
    f"{ASK} --rule cactus:delta=1 --trace nuts.jsonl\n\n"
    "cactus trace nuts.jsonl\n\n"
    "cactus trace nuts.jsonl --output for-a-colleague.html"
)


def trace(
    file: Annotated[Path, typer.Argument(metavar="TRACE.jsonl", help="Trace of cactus generate --trace.")],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, show_default="beside the trace, ending in .html",
                     help="The page: one HTML file that needs nothing else.", rich_help_panel=options.OUTPUT),
    ] = None,
) -> None:  # fmt: skip
    """Show a response token by token: what both models and the rule thought there, and what it cost.

    Needs the extra 'playground' or 'report', which 'make demo' installs.
    """
    from cactus_decoding.files.writing import check_writable, part_of, write_atomically

    page = file.with_suffix(".html") if output is None else output
    check_writable(page, inputs=[file])
    options.check_suffix("--output", output, ".html", ".htm")
    if not part_of(file).exists():  # of which reading would tell
        file.stat()  # raises where there is none, before torch is imported
    from cactus_decoding.tracing import read_trace
    from cactus_decoding.tracing.page import to_html

    write_atomically(page, to_html(read_trace(file)))
    typer.echo(f"wrote {page}")
