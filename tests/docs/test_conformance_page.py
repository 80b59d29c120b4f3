"""The tables of the page about conformance are those of its result files."""

from __future__ import annotations

from studies.conformance.page import PAGE, rendered


def test_the_page_is_written_from_its_results():
    text = PAGE.read_text()
    assert rendered(text) == text
    assert text.count("<!-- end of") == 3
