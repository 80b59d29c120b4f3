"""The tables about conformance are those of its result files."""

from __future__ import annotations

import pytest

from studies.conformance.page import PAGES, rendered


@pytest.mark.parametrize(("page", "tables"), [(PAGES[0], 4), (PAGES[1], 6)])
def test_a_page_is_written_from_its_results(page, tables):
    text = page.read_text()
    assert rendered(text) == text
    assert text.count("<!-- end of") == tables
