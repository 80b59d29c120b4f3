"""The report's page in a real browser: nothing is fetched, and what comes from files stays text."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from support.browser import watched_page
from support.recorded_rows import some_rows
from support.result_files import NASTY, several

from cactus_decoding.lab.frontier.frontier import as_result, frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from cactus_decoding.lab.reporting.report import make_report, to_html


def frontier_file(path):
    rows = some_rows()
    result = as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, {"commit": "0" * 40})
    path.write_text(json.dumps(result))
    return path


@contextmanager
def opened(browser, path, **options):
    """Open a page; yields it with the addresses that it asked for and the complaints of its console."""
    with watched_page(browser, **options) as (page, requests, complaints):
        page.goto(path.as_uri())
        page.wait_for_load_state("load")
        yield page, requests, complaints


def fetched(requests, path):
    """Return the addresses that are neither the page itself nor data within it."""
    return [url for url in requests if url != path.as_uri() and not url.startswith("data:")]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(browser, tmp_path, scheme, width):
    results = several() + several(draft="ngram") + several(draft="early_exit")
    results += several(target=NASTY, task=NASTY)
    added = frontier_file(tmp_path / "frontier.json")
    path = tmp_path / "report.html"
    path.write_text(to_html(make_report([("a.jsonl", results)], (added, json.loads(added.read_text())))))
    with opened(browser, path, viewport={"width": width, "height": 844}, color_scheme=scheme) as (
        page,
        requests,
        complaints,
    ):
        page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
        pictures = page.locator("img")
        assert pictures.count() == 4 * 4 + 1 + 1  # of each pair, of the three pairs together, of the frontier
        for picture in pictures.all():
            natural = picture.evaluate("image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])")
            assert min(natural) > 100
            box = picture.bounding_box()
            assert min(box["width"], box["height"]) > 100
            assert picture.get_attribute("alt")
        assert fetched(requests, path) == []
        assert complaints == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width  # only tables scroll sideways
        colours = page.evaluate(
            "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        light = sum(map(int, colours[1].removeprefix("rgb(").removesuffix(")").split(","))) > 600
        assert light == (scheme == "light")
        assert page.locator("table").count() == 2 * 4
        assert page.get_by_role("heading", level=1).count() == 1


@pytest.mark.slow
def test_the_browser_would_notice(browser, tmp_path):
    """The watch on requests, complaints and pictures fails on a page that is wrong in each of these ways."""
    path = tmp_path / "wrong.html"
    path.write_text('<img src="http://127.0.0.1:9/x.png"><img src="data:image/svg+xml,broken"><script>oops()</script>')
    with opened(browser, path) as (page, requests, complaints):
        assert fetched(requests, path) == ["http://127.0.0.1:9/x.png"]
        assert any("oops" in complaint for complaint in complaints)
        assert page.locator("img").nth(1).evaluate("image => image.naturalWidth") == 0
