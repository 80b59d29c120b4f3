"""The messages that the page on troubleshooting quotes are the package's own, word for word."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.code_blocks import ROOT
from support.tables import all_of

PAGE = ROOT / "docs" / "troubleshooting.md"
# Quoted, but of others: the shell's and Python's.
FOREIGN = {"bash: cactus: command not found", "ModuleNotFoundError: No module named 'cactus_decoding'"}


def sentences(path: Path) -> list[str]:
    """Return all texts of a source file, with … where something is put in."""
    if path.suffix == ".sh":
        return [re.sub(r"\$\(.*?\)|\$\{?\w+\}?", "…", text) for text in re.findall(r'"([^"]*)', path.read_text())]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


SENTENCES = [
    " ".join(text.split())
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("setup*.sh"))
    for text in sentences(path)
]


def messages(page: str) -> list[str]:
    """Return what first cells quote and what reads as a sentence: names and options are none."""
    cells = [
        line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and not line.startswith("| message")
    ]
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [text for text in quoted if len(text.split()) > 2 and text not in FOREIGN]


def is_said(message: str) -> bool:
    """Say whether some text of the sources has all parts of a message, in order."""
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    wanted = re.compile(".*".join(parts))
    return any(wanted.search(text) for text in SENTENCES)


@all_of("message", messages(PAGE.read_text()))
def test_a_quoted_message_is_one_of_the_package(message: str) -> None:
    assert is_said(message), message


def test_a_message_that_nobody_says_is_found_out() -> None:
    assert len(messages(PAGE.read_text())) > 8
    assert not is_said("a draft is lacking for target …")
    assert not is_said("… runs are in … of … already")
