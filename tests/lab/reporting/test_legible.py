"""The report's page and the pictures of evaluations can be read, on a wide screen and on a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import watched_page
from support.code_blocks import ROOT
from support.legible import illegible, overlapping_texts
from support.result_files import made, several

from cactus_decoding.lab.reporting.report import Report, make_report, to_html

pytestmark = pytest.mark.slow
PICTURES = sorted(path for path in (ROOT / "docs").rglob("*.svg") if "assets" not in path.parts)


@pytest.fixture(scope="module")
def report() -> Report:
    """As crowded as the study: many settings that come out nearly alike, with long names."""
    alike = [
        made(rule, length, accepted=0.6 + i / 500, nats=0.1 + i / 1000, right=0.9)
        for i, rule in enumerate(("cactus:delta=0.75", "cactus:delta=1.0", "cactus:delta=1.0,solver=exact",
                                  "clamped:width=5.16", "top_k:k=10", "ensemble:weight=0.3"))
        for length in (10, 20)
    ]  # fmt: skip
    return make_report([("a.jsonl", several() + alike)])


@pytest.mark.parametrize("width", [400, 1200])
def test_tables_of_the_report_are_whole(browser, report, width: int, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(to_html(report))
    with watched_page(browser, viewport={"width": width, "height": 800}) as (page, _, complaints):
        page.goto(path.as_uri())
        assert illegible(page) == []
        assert page.locator("figure img").first.bounding_box()["width"] >= 400  # a phone scrolls it
        assert complaints == []


def shown(browser, svg: str) -> list[str]:
    with watched_page(browser, viewport={"width": 1200, "height": 800}) as (page, _, _):
        page.set_content(svg[svg.index("<svg") :])
        assert page.locator("svg g[id^='text_']").count() > 5
        return overlapping_texts(page)


def test_no_text_of_a_crowded_picture_lies_on_another(browser, report) -> None:
    pictures = [picture for section in report.sections for picture in section.pictures]
    assert len(pictures) == 4
    for picture in pictures:
        assert shown(browser, picture.svg) == [], picture.caption


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_no_text_of_a_picture_on_a_page_lies_on_another(browser, path: Path) -> None:
    assert shown(browser, path.read_text()) == []


def test_what_cannot_be_read_is_found(browser) -> None:
    with watched_page(browser, viewport={"width": 300, "height": 300}) as (page, _, _):
        page.set_content("<table><td style='width: 1px; overflow-wrap: anywhere'>0.123456</table>"
                         "<div style='overflow: hidden; width: 50px'><table><td>a long cell nowhere</table></div>"
                         "<svg><g id='text_1'><text y='20'>one</text></g>"
                         "<g id='text_2'><text y='21'>two</text></g></svg>"
                         "<p style='width: 400px'>wide</p>")  # fmt: skip
        assert sorted(text.split()[0] for text in illegible(page)) == ["408", "breaks", "cut:"]
        assert overlapping_texts(page)
