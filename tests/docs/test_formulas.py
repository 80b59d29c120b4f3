"""Formulas of pages are shown: Markdown eats no asterisks, and no LaTeX stands where the build leaves it as it is."""

from __future__ import annotations

import re

from support.code_blocks import ROOT
from support.tables import all_of

PAGES = [str(page.relative_to(ROOT)) for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])]
# code, and displayed formulas, which the build turns into MathML
CODE = re.compile(r"^ *```.*?^ *```$|^(?: {4}.*\n)+|^\$\$.*?\$\$$|(`+).*?\1|<!--.*?-->", re.DOTALL | re.MULTILINE)
LATEX = re.compile(r"\$\\?[^\s$]|\\(?:[a-zA-Z]+|[(\[])")
EATEN = re.compile(r"\w\*(?=\w)")


def wrong(page: str) -> list[str]:
    """Return LaTeX, and asterisks within words that begin emphasis, outside of code and displayed formulas."""
    text = CODE.sub("", page)
    return [found[0] for each in (LATEX, EATEN) for found in each.finditer(text)]


@all_of("page", PAGES)
def test_a_page_shows_its_formulas(page: str) -> None:
    assert wrong((ROOT / page).read_text(encoding="utf-8")) == []


def test_formulas_that_are_not_shown_are_found() -> None:
    assert wrong("keeps r*ₖ, where r*ᵢ = 1") == ["r*", "r*"]
    assert wrong("asks for $q(n) \\ge 1$") == ["$q", "\\ge"]
    assert wrong("the least \\(E / q\\)") == ["\\("]
    assert wrong("*so* it is, **too**: 1.6\\*, `r*k`, `$x`\n\n$$\n\\frac{1}{2}\n$$\n\n```bash\necho $HOME\n```\n") == []
