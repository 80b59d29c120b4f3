"""What runs of studies have in common: their options, and the whole of those whose result is one table."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cactus_decoding.core.files.provenance import provenance
from scripts.pages import insert

ROOT = Path(__file__).resolve().parents[1]
Rows = Sequence[Mapping[str, Any]]


def table_parser(description: str | None, results: Path, page: str) -> ArgumentParser:
    """Return a parser with the options of every such study; ``page`` is its usual one, from the root."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only-render", action="store_true")
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--page", type=Path, default=ROOT / page)
    return parser


def answers_parser(description: str | None, samplings: Collection[str], folder: Path, page: Path) -> ArgumentParser:
    """Return a parser with the options of every study that answers problems under several samplings."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--sampling", choices=list(samplings), nargs="+", default=list(samplings))
    parser.add_argument("--folder", type=Path, default=folder, help="where result files are")
    parser.add_argument("--page", type=Path, default=page, help="the page whose tables are replaced")
    parser.add_argument("--problems", type=int, default=None, help="at most so many of each part, for a trial")
    parser.add_argument("--only-answer", action="store_true")
    parser.add_argument("--only-render", action="store_true")
    return parser


def report_next(progress: Callable[[int, str], None], done: Iterator[int], remark: str) -> None:
    """Report that one more is done."""
    progress(next(done), remark)


def render(
    given: Namespace,
    table: str,
    markdown: Callable[[Rows], str],
    measure: Callable[[], Rows],
    arguments: Mapping[str, Any],
) -> None:
    """Measure and write the result file, unless there is only to render, and put the table on the page."""
    if not given.only_render:
        result = {"rows": measure(), "provenance": provenance(arguments)}
        given.results.write_text(json.dumps(result, indent=2) + "\n")
    rows = json.loads(given.results.read_text())["rows"]
    given.page.write_text(insert(given.page.read_text(), table, markdown(rows)))
