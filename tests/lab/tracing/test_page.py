"""The page of a trace: nothing breaks out of it, and it is opened in a real browser."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import replace
from html import unescape

import pytest
from support.browser import watched_page
from support.traces import PROMPT

from cactus_decoding import Fate, Request, load_pair
from cactus_decoding.lab.tracing import trace_response
from cactus_decoding.lab.tracing.page import script_json, trace_to_html

HOSTILE = ("</script>", "<img src=x onerror=alert(1)>", "<!--", "]]>", "\u202e\x00\x07", "&amp;\"'`", "\ud800",
           "{{ 7 * 7 }}")  # fmt: skip


def hostile(trace):
    """Return a trace whose tokens, texts, trees and settings try to break out of the page."""
    steps = []
    for step in trace.steps:
        positions = []
        for position in step.positions:
            text = HOSTILE[position.place % len(HOSTILE)]
            candidates = tuple(replace(one, token=text) for one in position.candidates)
            positions.append(replace(position, token=text, text=text, drafted=text, rule=text, candidates=candidates))
        nodes = [
            replace(node, token=HOSTILE[place % len(HOSTILE)], rule=node.rule and HOSTILE[1])
            for place, node in enumerate(step.tree)
        ]
        steps.append(replace(step, positions=tuple(positions), tree=tuple(nodes)))
    request = trace.header.request.replace(stop=HOSTILE)
    header = replace(trace.header, prompt="".join(HOSTILE), request=request, target=HOSTILE[1], draft=HOSTILE[0],
                     provenance={"x": HOSTILE})  # fmt: skip
    return replace(trace, header=header, steps=tuple(steps), text="".join(p.text for s in steps for p in s.positions))


def test_nothing_breaks_out_of_the_page(of_trees):
    page = trace_to_html(hostile(of_trees))
    page.encode()  # no lone surrogates
    assert page.count("<script") == 2 == page.count("</script")
    assert "<img" not in page
    assert "\x00" not in page
    assert "{{ 7 * 7 }}" in unescape(page)
    data = page.partition('id="trace">')[2].partition("</script>")[0]
    assert json.loads(data)["positions"][0]["token"] == HOSTILE[0]
    steps = {int(step): len(nodes) for step, nodes in json.loads(data)["trees"].items()}
    assert steps == {step.step: len(step.tree) for step in of_trees.steps if step.tree}
    assert json.loads(script_json(HOSTILE)) == list(HOSTILE)
    assert "<" not in script_json(HOSTILE)


@contextmanager
def opened(browser, path, **options):
    """Open a page offline; it must ask for nothing else and complain of nothing."""
    with watched_page(browser, offline=True, **options) as (page, requests, complaints):
        page.goto(path.as_uri())
        yield page
        assert [url for url in requests if url != path.as_uri() and not url.startswith("data:")] == []
        assert complaints == []


@pytest.fixture(scope="module")
def page_file(trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "trace.html"
    path.write_text(trace_to_html(trace))
    return path


@pytest.mark.slow
def test_tokens_by_mouse_and_keyboard(browser, page_file, trace):
    with opened(browser, page_file, viewport={"width": 1280, "height": 900}) as page:
        card, tokens = page.locator(".ca-card"), page.locator(".ca-text .ca-token")
        emitted = [position for position in trace.positions if position.emitted]
        assert tokens.count() == len(emitted)
        looks = set()
        for fate in Fate:
            wanted = sum(position.fate == fate for position in emitted)
            assert page.locator(f".ca-text .ca-{fate}").count() == wanted
            looks.add(page.locator(f".ca-legend .ca-{fate}").first.evaluate(LOOK))
        assert len(looks) == len(Fate)  # told apart without colours
        shown = page.locator(".ca-text").evaluate("e => e.textContent").replace("↵", "").removesuffix("<eos>")
        assert shown == trace.text
        assert page.locator(".ca-charts svg").count() == 3
        spent = math.fsum(position.emitted_nats for position in trace.positions)
        assert f"nats spent: {spent:.4f} of 0.6000" in page.locator(".ca-charts").inner_text()
        assert page.get_by_role("heading", level=1).inner_text().endswith("cactus:delta=1.0")

        assert "Point at a token" in card.inner_text()
        tokens.nth(2).hover()
        assert "token 3, step" in card.inner_text()
        page.mouse.move(5, 5)
        assert "Point at a token" in card.inner_text()

        page.locator("body").click(position={"x": 5, "y": 5})
        for _ in range(3):  # the prompt and the answer are stops
            page.keyboard.press("Tab")
            if page.locator(".ca-token:focus").count():
                break
        assert tokens.nth(0).evaluate("e => e === document.activeElement")
        assert "token 1, step 1" in card.inner_text()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert "token 3, step" in card.inner_text()
        assert tokens.nth(2).get_attribute("aria-selected") == "true"
        page.keyboard.press("ArrowDown")
        below = int(page.locator(".ca-token:focus").get_attribute("data-place"))
        assert below > 2
        assert tokens.nth(below).bounding_box()["y"] > tokens.nth(2).bounding_box()["y"]
        page.keyboard.press("ArrowUp")
        page.keyboard.press("End")
        assert f"token {tokens.count()}, step" in card.inner_text()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowLeft")
        assert "token 1, step 1" in card.inner_text()
        tokens.nth(4).hover()
        assert "token 5, step" in card.inner_text()
        page.keyboard.press("Escape")
        assert "Point at a token" in card.inner_text()

        position = next(position for position in trace.positions if position.fate is Fate.RECOVERED)
        tokens.nth(position.place).click()
        text = card.inner_text()
        assert "was rejected, and this token was drawn instead" in text
        rows = page.locator(".ca-card tbody tr")
        assert rows.count() == len(position.candidates)
        assert f"{position.budget_left:.4f} nats" in text
        mine = next(i for i, one in enumerate(position.candidates) if one.token_id == position.token_id)
        assert "chosen" in rows.nth(mine).inner_text()
        fills = rows.nth(mine).locator(".ca-cell-emitted .ca-fill").evaluate(FILL)
        assert fills == pytest.approx(position.candidates[mine].emitted, abs=0.1)


LOOK = "e => { const s = getComputedStyle(e); return s.textDecorationStyle + s.textDecorationThickness; }"
FILL = "e => e.getBoundingClientRect().width / e.parentElement.clientWidth"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_narrow_and_wide_in_light_and_dark(browser, page_file, width, scheme):
    with opened(
        browser, page_file, viewport={"width": width, "height": 700}, color_scheme=scheme, has_touch=True
    ) as page:
        token = page.locator(".ca-text .ca-token").nth(5)
        token.tap()
        card = page.locator(".ca-card")
        assert "token 6, step" in card.inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        box, covered = token.bounding_box(), card.bounding_box()
        assert width > 600 or box["y"] + box["height"] <= covered["y"] + 1  # the card does not hide its token
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, colour[4:-1].split(","))) > 600) == (scheme == "light")
        contrast = page.evaluate(CONTRAST)
        assert min(contrast.values()) >= 3, contrast


CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const luminance = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const part = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  return Object.fromEntries(["accepted", "relaxed", "recovered", "bonus"].map((fate) => {
    const mine = luminance(getComputedStyle(document.querySelector(`.ca-legend .ca-${fate}`)).textDecorationColor);
    return [fate, (Math.max(mine, paper) + 0.05) / (Math.min(mine, paper) + 0.05)];
  }));
}"""


@pytest.mark.slow
def test_hostile_tokens_are_shown_and_do_nothing(browser, of_trees, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(trace_to_html(hostile(of_trees)))
    with opened(browser, path) as page:
        tokens = page.locator(".ca-text .ca-token")
        assert tokens.nth(0).inner_text() == "</script>"
        tokens.nth(0).click()
        assert "</script>" in page.locator(".ca-tree").text_content()
        for i in range(len(HOSTILE)):
            tokens.nth(i).click()
        assert page.locator("img").count() == 0
        tokens.nth(1).click()
        assert "<img src=x onerror=alert(1)>" in page.locator(".ca-card").inner_text()
        assert "\u202e" not in page.locator("body").inner_text()


@pytest.fixture(scope="module")
def of_trees():
    request = Request("clamped:width=2", tree="static=3.2.1", seed=3)
    return trace_response(load_pair(), PROMPT, request)


@pytest.mark.slow
def test_the_tree_of_a_step_is_drawn_with_its_path(browser, of_trees, tmp_path):
    path = tmp_path / "trees.html"
    path.write_text(trace_to_html(of_trees))
    step = max((step for step in of_trees.steps if step.tree), key=lambda step: step.num_accepted)
    with opened(browser, path, viewport={"width": 360, "height": 900}) as page:
        assert page.locator(".ca-tree").count() == 0
        page.locator(f'.ca-text [data-place="{step.positions[0].place}"]').click()
        tree = page.locator(".ca-card .ca-tree")
        assert tree.locator(".ca-node:not(.ca-next)").count() == step.num_drafted
        assert tree.locator(".ca-next").count() == 1
        assert tree.locator("path.ca-path").count() == step.num_accepted + 1
        kept = [node.fate for node in step.tree if node.fate not in (None, "rejected")]
        for fate in set(kept):
            assert tree.locator(f".ca-node.ca-{fate}:not(.ca-next)").count() == kept.count(fate)
        assert tree.locator(".ca-at").count() == 1
        assert f"proposals of step {step.step + 1}: {step.num_drafted}" in page.locator(".ca-card").inner_text()
        assert f"Tree of {step.num_drafted} proposals; kept: " in tree.get_attribute("aria-label")
        titles = tree.locator("title").all_text_contents()
        assert sum(title.startswith("drawn") for title in titles) == sum(node.drawn for node in step.tree)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        boxes = tree.locator("rect").evaluate_all("all => all.map((e) => [e.x.baseVal.value, e.y.baseVal.value])")
        assert len({tuple(box) for box in boxes}) == step.num_drafted + 1  # none hides another
        page.locator(f'.ca-text [data-place="{step.positions[1].place}"]').click()
        assert tree.locator(".ca-at title").text_content() != titles[0] or step.num_accepted < 2
        bonus = page.locator(".ca-text .ca-bonus, .ca-text .ca-recovered").first
        bonus.click()
        assert page.locator(".ca-tree .ca-next.ca-at").count() == 1
