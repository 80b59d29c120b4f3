"""`cactus trace`: a page of a recorded response."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cactus_decoding.cli import options
from cactus_decoding.cli.help import ASK
from cactus_decoding.cli.options import OUTPUT, option

EXAMPLES = (
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
    from cactus_decoding.core.files.writing import check_writable, part_path, write_atomically

    page = file.with_suffix(".html") if output is None else output
    check_writable(page, inputs=[file])
    options.check_suffix("--output", output, ".html", ".htm")
    if not part_path(file).exists():  # else reading the file says what is wrong
        file.stat()  # raises for a missing file, before torch is imported
    from cactus_decoding.lab.tracing import read_trace
    from cactus_decoding.lab.tracing.page import trace_to_html

    write_atomically(page, trace_to_html(read_trace(file, rows=False)))
    typer.echo(f"wrote {page}")
