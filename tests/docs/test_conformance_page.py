"""The tables of the page about conformance are those of its result files."""

from __future__ import annotations

from studies.conformance.page import PAGES, rendered


def test_the_page_is_written_from_its_results():
    texts = [page.read_text() for page in PAGES]
    assert [rendered(text) for text in texts] == texts
    assert [text.count("<!-- end of") for text in texts] == [2, 1]
