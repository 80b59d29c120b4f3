"""A report as one self-contained HTML page, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from cactus_decoding.evaluation.reporting.report import Report, columns_of, name_of, number
from cactus_decoding.files.templates import page_templates

EXPLANATION = (
    "Each number stands with its 95 % interval: exact for proportions and their differences, the bootstrap over "
    "problems for the rest, and none where the problems are too few to tell (fewer than six, or all alike); "
    "paired where settings are compared. The baseline is lossless sampling at its own best draft length, found in the "
    "same run; where trees were proposed, at its best chain, and its best tree stands beside it. "
    "Wall time is per answer: tokens per second alone would reward longer answers. A largest likelihood "
    "ratio is a maximum and has no interval. Settings stand in the order in which they were measured."
)


def to_html(report: Report) -> str:
    """Return one page that needs nothing else: no network, no script.

    Raises:
        ValueError: where Jinja2 is not installed.
    """
    templates = page_templates(Path(__file__).parent)
    templates.globals |= {"columns_of": columns_of, "number": number, "name_of": name_of, "parts_of": parts_of}
    return templates.get_template("report.html.jinja").render(report=report, explanation=EXPLANATION)


def parts_of(name: str) -> list[str]:
    """Return a setting's name in parts between which a line may end: never within a number.

    >>> parts_of("cactus:delta=1.0,solver=exact ×10")
    ['cactus:', 'delta=1.0,', 'solver=exact ×10']
    """
    return re.findall(r"[^:,]*[:,]|[^:,]+", name)


def to_markdown(report: Report, heading: Callable[[str], str] = "## {}".format) -> str:
    """Return the tables as Markdown."""
    parts = [EXPLANATION]
    for section in report.sections:
        parts.append(heading(escape(section.title)))
        for name, summaries in section.pairs.items():
            columns = columns_of(summaries)
            lines = [f"| {escape(name)} | " + " | ".join(title for _, title, _ in columns) + " |"]
            lines.append("|---|" + "---:|" * len(columns))
            for summary in summaries:
                numbers = (number(summary.metrics[metric], digits) for metric, _, digits in columns)
                lines.append(f"| {escape(name_of(summary))} | " + " | ".join(numbers) + " |")
            parts.append("\n".join(lines))
        parts += [escape(note) for note in section.notes]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Return text that Markdown shows as it is, inside a table too.

    >>> print(escape("<b>|*x*"))
    &lt;b&gt;\|\*x\*
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{letter}" if letter in "\\`*_[]|" else letter for letter in text)
