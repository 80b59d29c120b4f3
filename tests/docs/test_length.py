"""Pages stay short: what is read grows more easily than it is read."""

from __future__ import annotations

from pathlib import Path

from support.code_blocks import ROOT

MOST = 30_000
"""Words of README.md and of all pages in docs/ but the studies' long tables: what stands between white space, code and
table cells included, as `wc -w` counts."""


def words(root: Path) -> int:
    """Return how many words a reader finds."""
    long_tables = root / "docs" / "studies" / "tables"
    pages = [page for page in (root / "docs").rglob("*.md") if not page.is_relative_to(long_tables)]
    return sum(len(page.read_text().split()) for page in [root / "README.md", *pages])


def test_pages_stay_short() -> None:
    assert words(ROOT) <= MOST


def test_all_words_but_those_of_long_tables_are_counted(tmp_path: Path) -> None:
    for name, text in {
        "README.md": "one | two |",
        "docs/a.md": "```\nthree\n```",
        "docs/rules/b.md": "four",
        "docs/studies/c.md": "five  six",
        "docs/studies/tables/d.md": "none of these",
        "docs/results/e.json": "nor of these",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert words(tmp_path) == 10
