"""Text between two marks of a page, which scripts regenerate."""

from __future__ import annotations


def insert(page: str, name: str, text: str) -> str:
    """Replace what a page has between ``<!-- begin: name -->`` and ``<!-- end: name -->``."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, mark, rest = page.partition(begin)
    _, closing, after = rest.partition(end)
    if not mark or not closing:
        raise ValueError(f"the page must contain {begin} and {end}")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"
