"""The report: nothing lost, nothing fetched, everything escaped, and its page opened in a real browser."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
from support.browser import headless_browser, watched_page
from support.recorded_rows import some_rows
from support.result_files import made, several, write

from cactus_decoding.evaluation.frontier.families import FAMILIES
from cactus_decoding.evaluation.frontier.frontier import as_result, frontier
from cactus_decoding.evaluation.reporting import charts
from cactus_decoding.evaluation.reporting.charts import TO_ALONE, TO_LOSSLESS, time_metric
from cactus_decoding.evaluation.reporting.report import COLUMNS, make_report, number, read_all, sigma_band
from cactus_decoding.evaluation.reporting.report_text import to_html, to_markdown
from cactus_decoding.evaluation.runs.summary import NAMES, summarise

NASTY = '<script>alert("x")</script> $\\frac{1}{2}$ | _a_ \x00\ud800 名前 & "quoted"'


def frontier_file(path):
    rows = some_rows()
    result = as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, {"commit": "0" * 40})
    path.write_text(json.dumps(result))
    return path


# --- numbers ---


def test_every_row_and_every_metric_is_in_the_tables(tmp_path):
    made_of = make_report(read_all([write(tmp_path / "a.jsonl", several())]))
    (section,) = made_of.sections
    (rows,) = section.pairs.values()
    assert [row.config.label for row in rows] == [row.config.label for row in summarise(several())]
    page, table = to_html(made_of), to_markdown(made_of)
    for row in rows:
        for metric, _, digits in COLUMNS:
            text = number(row.metrics[metric], digits)
            assert text in page
            assert text in table
    assert {metric for metric, _, _ in COLUMNS} <= set(NAMES)
    assert page.count("<th scope=row".replace("=row", '="row"')) == len(rows)
    assert "(best lossless)" in page
    assert all(line.count("|") == table.splitlines()[4].count("|") for line in table.splitlines() if line[:1] == "|")


def test_the_band_is_one_standard_error_of_the_target_alone():
    rows = summarise(several())
    band = sigma_band(rows)
    share = rows[0].metrics["score"].value
    sigma = math.sqrt(share * (1 - share) / 59)  # the sample's standard deviation, of 60 problems
    assert (band.value, band.low, band.high) == pytest.approx((share, share - sigma, share + sigma))
    assert sigma_band(rows[1:]) is None


def test_time_is_normalised_by_the_target_alone_where_every_pair_has_it():
    rows = summarise(several())
    assert time_metric(rows) == TO_ALONE
    assert time_metric(summarise([r for r in several() if r.config.num_speculative_tokens])) == TO_LOSSLESS


def test_panels_of_wall_time_show_the_slowest_pair_whole(monkeypatch):
    monkeypatch.setattr(charts, "to_svg", lambda figure: figure)
    slow = [made("lossless", 0, seconds=1.0, draft="slow"), made("lossless", 4, seconds=3.0, draft="slow")]
    figure = charts.time_picture({"quick": summarise(several()), "slow": summarise(slow)})
    for panel in figure.axes:
        assert panel.get_ylim()[0] == 0
        assert panel.get_ylim()[1] > 3


def test_what_is_missing_is_said():
    bare = [made("cactus:delta=1.0", 4, audited=False, scored=False)]
    (section,) = make_report([("a.jsonl", bare)]).sections
    assert len(section.pictures) == 1
    notes = " ".join(section.notes)
    for text in ("the task has no score", "nobody audited", "lossless was not measured"):
        assert text in notes
    (section,) = make_report([("a.jsonl", several()[1:])]).sections
    assert "the target alone was not measured" in section.notes[0]


def test_pairs_stand_side_by_side_and_samplings_apart():
    results = several() + several(draft="ngram") + several(draft="early_exit") + several(temperature=0.6, top_k=20)
    plain, truncated = make_report([("a.jsonl", results)]).sections
    assert [name.partition("draft ")[2] for name in plain.pairs] == ["small", "ngram", "early_exit"]
    assert plain.pictures[-1].wide
    assert "temperature 0.6, top-k 20" in truncated.title
    assert len(truncated.pairs) == 1


def test_a_draft_length_may_be_one_that_adapts():
    results = [*several(), made("lossless", 4, seconds=0.95)]
    results[-1] = replace(results[-1], config=results[-1].config.asking(num_speculative_tokens="adaptive"))
    page = to_html(make_report([("a.jsonl", results)]))
    assert "lossless ×adaptive (best lossless)" in page


def test_the_same_results_give_the_same_bytes():
    pages = [to_html(make_report([("a.jsonl", several())])) for _ in range(2)]
    assert pages[0] == pages[1]


def test_what_comes_from_files_is_escaped():
    results = several(target=NASTY, task=NASTY)
    provenance = {"commit": NASTY}
    results = [type(r)(r.config, r.answers, provenance) for r in results]
    made_of = make_report([(NASTY, results)])
    page = to_html(made_of)
    assert "<script" not in page
    assert "&lt;script&gt;alert" in page
    assert "\x00" not in page
    page.encode()  # no lone surrogates
    table = to_markdown(made_of)
    assert "<script" not in table
    header = next(line for line in table.splitlines() if line.startswith("| "))
    assert header.replace("\\|", "").count("|") == len(COLUMNS) + 2
    table.encode()


# --- command ---


def test_the_command_writes_page_and_table(run, tmp_path):
    first, second = write(tmp_path / "a.jsonl", several()), write(tmp_path / "b.jsonl", several(draft="ngram"))
    page, table = tmp_path / "report.html", tmp_path / "table.md"
    added = frontier_file(tmp_path / "frontier.json")
    code, out, err = run("report", str(first), str(second), "--output", str(page), "--markdown", str(table),
                         "--frontier", str(added))  # fmt: skip
    assert (code, err) == (0, "")
    assert str(page) in out
    assert page.read_text().count("<img") == 10
    assert "draft ngram" in table.read_text()


GOOD = made("lossless", 4).line()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "a.jsonl: No such file or directory"),
        ("", "a.jsonl: there is no finished run in this file"),
        (GOOD + "{broken\n", "a.jsonl, line 2: this is not"),
        (GOOD + '{"x": 1}\n', "a.jsonl, line 2: this is not a result of cactus eval"),
        (GOOD.replace('"schema": 1', '"schema": 7'), "a.jsonl, line 1: schema is 7, but this version reads schema 1"),
        (GOOD + GOOD, "a.jsonl, line 2: this run is also in"),
        (GOOD.replace('"steps": [10, ', '"steps": ['), "a.jsonl, line 1: the answers must have 60 entries"),
    ],
)
def test_bad_files_are_named_and_nothing_is_overwritten(run, tmp_path, text, message):
    given, page, table = tmp_path / "a.jsonl", tmp_path / "report.html", tmp_path / "table.md"
    if text is not None:
        given.write_text(text)
    page.write_text("kept")
    code, out, err = run("report", str(given), "--output", str(page), "--markdown", str(table))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert page.read_text() == "kept"
    assert not table.exists()


def test_a_bad_frontier_and_bad_outputs_are_mistakes_too(run, tmp_path):
    given, page = write(tmp_path / "a.jsonl", several()), tmp_path / "report.html"
    (tmp_path / "f.json").write_text('{\n"kind": oops}')
    code, _, err = run("report", str(given), "--output", str(page), "--frontier", str(tmp_path / "f.json"))
    assert code == 2
    assert "f.json, line 2: this is not JSON" in err
    before = given.read_bytes()
    code, _, err = run("report", str(given), "--output", str(given))
    assert code == 2
    assert "is an input; give another output" in err
    code, _, err = run("report", str(given), "--output", str(page), "--markdown", str(page))
    assert code == 2
    assert "outputs must be different files" in err
    assert run("report", str(given), "--output", "/missing/r.html")[0] == 2
    assert given.read_bytes() == before
    assert not page.exists()


# --- a real browser ---


@pytest.fixture(scope="module")
def browser():
    with headless_browser() as started:
        yield started


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
        assert page.locator("table").count() == 4
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
