"""The report's page and pictures in a real browser: nothing is fetched, all can be read, texts of files stay texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.browser import watched_page
from support.code_blocks import ROOT
from support.legible import illegible, overlapping_texts
from support.recorded_rows import frontier_file
from support.result_files import NASTY, made, several

from cactus_decoding.lab.reporting.report import Report, make_report, report_to_html

pytestmark = pytest.mark.slow
PICTURES = sorted(path for path in (ROOT / "docs").rglob("*.svg") if "assets" not in path.parts)


@pytest.fixture(scope="module")
def crowded() -> Report:
    """As crowded as the study: many settings that come out nearly alike, with long names."""
    alike = [
        made(rule, length, accepted=0.6 + i / 500, nats=0.1 + i / 1000, right=0.9)
        for i, rule in enumerate(("cactus:delta=0.75", "cactus:delta=1.0", "cactus:delta=1.0,solver=exact",
                                  "clamped:width=5.16", "top_k:k=10", "ensemble:weight=0.3"))
        for length in (10, 20)
    ]  # fmt: skip
    return make_report([("a.jsonl", several() + alike)])


def fetched(requests: list[str], path: Path) -> list[str]:
    """Return the addresses that are neither the page itself nor data within it."""
    return [url for url in requests if url != path.as_uri() and not url.startswith("data:")]


def test_the_page_in_a_browser(browser, tmp_path: Path) -> None:
    results = several() + several(draft="ngram") + several(draft="early_exit")
    results += several(target=NASTY, task=NASTY)
    added = frontier_file(tmp_path / "frontier.json")
    path = tmp_path / "report.html"
    path.write_text(report_to_html(make_report([("a.jsonl", results)], (added, json.loads(added.read_text())))))
    with watched_page(browser) as (page, requests, complaints):
        page.goto(path.as_uri())
        page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
        pictures = page.locator("img")
        assert pictures.count() == 4 * 4 + 1 + 1  # of each pair, of the three pairs together, of the frontier
        assert page.locator("table").count() == 2 * 4 + 1  # of each pair twice, and of rejections
        assert page.get_by_role("heading", level=1).count() == 1
        for width, scheme in ((390, "light"), (1280, "dark"), (1280, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 844})
            page.emulate_media(color_scheme=scheme)
            for picture in pictures.all():
                size = picture.evaluate("image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])")
                assert min(size) > 100
                box = picture.bounding_box()
                assert min(box["width"], box["height"]) > 100
                assert picture.get_attribute("alt")
            assert page.evaluate("document.documentElement.scrollWidth") <= width  # only tables scroll sideways
            colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
            light = sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) > 600
            assert light == (scheme == "light")
        assert (fetched(requests, path), complaints) == ([], [])


def test_the_browser_would_notice(browser, tmp_path: Path) -> None:
    """The watch on requests, complaints and pictures fails on a page that is wrong in each of these ways."""
    path = tmp_path / "wrong.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><img src="data:image/svg+xml,broken"><script>oops()</script>')
    with watched_page(browser) as (page, requests, complaints):
        page.goto(path.as_uri())
        assert fetched(requests, path) == ["http://127.0.0.1:9/x.png"]
        assert any("oops" in complaint for complaint in complaints)
        assert page.locator("img").nth(1).evaluate("image => image.naturalWidth") == 0


def test_tables_of_the_report_are_whole(browser, crowded: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_to_html(crowded))
    with watched_page(browser) as (page, _, complaints):
        page.goto(path.as_uri())
        for width in (400, 1200):
            page.set_viewport_size({"width": width, "height": 800})
            assert illegible(page) == []
            assert page.locator("figure img").first.bounding_box()["width"] >= 400  # a phone scrolls it
        assert complaints == []


def test_no_text_of_a_picture_lies_on_another(browser, crowded: Report) -> None:
    pictures = {picture.caption: picture.svg for section in crowded.sections for picture in section.pictures}
    assert len(pictures) == 4
    with watched_page(browser, viewport={"width": 1200, "height": 800}) as (page, _, _):
        for name, svg in (pictures | {path.name: path.read_text() for path in PICTURES}).items():
            page.set_content(svg[svg.index("<svg") :])
            assert page.locator("svg g[id^='text_']").count() > 5, name
            assert overlapping_texts(page) == [], name


def test_what_cannot_be_read_is_found(browser) -> None:
    with watched_page(browser, viewport={"width": 300, "height": 300}) as (page, _, _):
        page.set_content("<table><td style='width: 1px; overflow-wrap: anywhere'>0.123456</table>"
                         "<div style='overflow: hidden; width: 50px'><table><td>a long cell nowhere</table></div>"
                         "<svg><g id='text_1'><text y='20'>one</text></g>"
                         "<g id='text_2'><text y='21'>two</text></g></svg>"
                         "<p style='width: 400px'>wide</p>")  # fmt: skip
        assert sorted(text.split()[0] for text in illegible(page)) == ["408", "breaks", "cut:"]
        assert overlapping_texts(page)
