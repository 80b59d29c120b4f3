"""The playground's page in a real browser: generate, look, what if, compare, stop, queue; keyboard, phone, mistakes."""

from __future__ import annotations

import re
from contextlib import ExitStack
from urllib.parse import parse_qs, urlencode

import pytest
from playwright.sync_api import expect
from support.browser import watched_page

from cactus_decoding import RULES, load_pair, stream
from cactus_decoding.lab.playground.form import FIRST_EXAMPLE
from cactus_decoding.zoo import RELAXED
from cactus_decoding.zoo.word_problems import EXAMPLES

slow = pytest.mark.slow  # all but the first, which `make test` runs
PATIENCE = 120_000
"""Milliseconds: a loaded machine must not make a test fail."""
expect.set_options(timeout=PATIENCE)
NUTS = EXAMPLES[1]
CACTUS = "#" + urlencode({"rule": "cactus:delta=0.5", "prompt": NUTS.question, "top_p": "0.95", "protect": "",
                          "num_speculative_tokens": "6"})  # fmt: skip
"""The form for a rule that relaxes everywhere, and for an answer in which it does."""


ALONE = """() => {
  const compare = document.querySelector("#compare");
  compare.checked = false;
  compare.dispatchEvent(new Event("change", { bubbles: true }));
}"""
"""One answer, without moving the keyboard's focus."""


class Visitor:
    """A browser of its own on the page."""

    def __init__(self, page, address, alone):
        self.page = page
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.wait_for_selector("body[data-state=ready]")
        if alone:
            page.evaluate(ALONE)

    def __getattr__(self, name):
        return getattr(self.page, name)

    def generate(self):
        self.page.click("#generate")
        self.page.wait_for_selector(".session .downloads a")
        self.page.wait_for_selector("body[data-state=ready]")

    def tokens(self, session=0):
        return self.page.locator(".session").nth(session).locator(".ca-text .ca-token")

    def set(self, label, value):
        """Fill a field of the form, wherever it is folded away."""
        self.page.evaluate("for (const part of document.querySelectorAll('#form details')) part.open = true")
        self.page.locator("#form").get_by_label(label, exact=True).first.fill(value)


@pytest.fixture
def visit(browser, server):
    """Return a function that visits the page, which may ask for nothing elsewhere and complain of refusals only."""
    seen = []
    with ExitStack() as visits:

        def new(path="", *, alone=True, **options):
            options = {"viewport": {"width": 1280, "height": 900}} | options
            page, *noted = visits.enter_context(watched_page(browser, **options))
            seen.append(noted)
            return Visitor(page, server.url + path, alone and not path)

        yield new
    for asked, wrong in seen:
        assert [each for each in wrong if "status of 422" not in each] == []
        assert all(url.startswith((server.url, "data:")) for url in asked)


def test_an_answer_streams_and_its_tokens_tell_what_happened(visit):
    page = visit()
    page.generate()
    alone = stream(load_pair(), EXAMPLES[FIRST_EXAMPLE].prompt, **RELAXED, seed=0)
    for _ in alone:
        pass
    shown = page.tokens()
    expect(shown).to_have_count(len(alone.token_ids))
    fates = [re.search(r"ca-(accepted|relaxed|recovered|bonus)", each)[1] for each in shown.evaluate_all(
        "tokens => tokens.map(token => token.className)")]  # fmt: skip
    assert fates == [str(fate) for fate in alone.fates]
    expect(page.locator(".session .metrics .step-count dd")).to_contain_text(str(alone.metrics.steps))
    expect(page.locator("#status")).to_contain_text(f"{alone.metrics.steps} steps")
    assert page.locator(".session .ca-charts svg").count() == 3
    # hovering shows a card, leaving hides it
    page.locator(".ca-text .ca-recovered").first.hover()
    expect(page.locator(".ca-card")).to_contain_text("It was rejected")
    page.mouse.move(2, 2)
    expect(page.locator(".ca-card")).to_have_class(re.compile("ca-empty"))


@slow
def test_the_page_shows_what_was_protected(visit):
    page = visit()
    expect(page.locator("#rule-part .spelling")).to_have_text(RELAXED["rule"])
    page.generate()
    pair, positions = load_pair(), []
    response = stream(pair, EXAMPLES[FIRST_EXAMPLE].prompt, **RELAXED, seed=0)
    for step in response:
        positions += [visit.protected for visit in step.visits] + [False] * (len(step.all_token_ids) - len(step.visits))
    protected = [place for place, one in enumerate(positions[: len(response.token_ids)]) if one]
    shown = page.tokens().evaluate_all("tokens => tokens.flatMap((t, i) => t.matches('.ca-protected') ? [i] : [])")
    assert shown == protected != []
    expect(page.locator(".session h2")).to_contain_text("protecting digits")
    expect(page.locator(".ca-legend li", has_text="protected")).to_be_visible()
    told = page.locator(".session .metrics div", has=page.get_by_text("protected", exact=True)).locator("dd")
    expect(told).to_have_text(str(response.metrics.protected))
    page.tokens().nth(protected[0]).click()
    expect(page.locator(".ca-card")).to_contain_text("This position is protected: the lossless rule decided.")
    nats = page.locator(".what-if tr", has_text=re.compile("^nats")).locator("td")
    expect(nats.first).to_have_text(re.compile(r"^(0|\d\.\de-\d+)$"))  # up to rounding
    expect(nats.nth(1)).not_to_have_text("–")  # what the rule would have cost there
    page.set("protect", "")
    page.generate()
    expect(page.locator(".ca-legend li", has_text="protected")).to_be_hidden()
    assert page.locator(".ca-protected").count() == 1  # in the legend


@slow
def test_everything_works_from_the_keyboard(visit):
    page = visit()
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".session .downloads a")
    page.tokens().first.focus()
    pair = load_pair()
    first = next(stream(pair, EXAMPLES[FIRST_EXAMPLE].prompt, **RELAXED, seed=0))
    expect(page.locator(".ca-card h3")).to_contain_text(pair.tokenizer.decode(first.token_ids[:1]).strip())
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(page.tokens().nth(2)).to_be_focused()
    expect(page.locator(".what-if h2")).to_have_text("What if, at token 3?")
    # on to the what-if slider by Tab alone
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.what-if input[type=range]')"):
            break
    slider = page.locator(".what-if input[type=range]")
    expect(slider).to_be_focused()
    page.keyboard.press("End")
    expect(page.locator(".what-if .spelling")).to_have_text("clamped:width=50")


@slow
def test_what_if_recomputes_the_law_and_its_cost(visit, server):
    page = visit(path=CACTUS)
    page.generate()
    page.locator(".ca-text .ca-relaxed").first.click()
    nats = page.locator(".what-if tr", has_text=re.compile("^nats")).locator("td")
    expect(nats).to_have_count(2)
    expect(nats.nth(1)).to_have_text(nats.nth(0).inner_text())  # nothing was moved yet
    expect(page.locator(".what-if .curve .line")).to_have_count(2)
    page.locator(".what-if input[type=text]").first.fill("0")
    expect(nats.nth(1)).to_have_text(re.compile(r"^(0|\d\.\de-\d+)$"))  # lossless, up to rounding
    tv = page.locator(".what-if tr", has_text="total variation").locator("td").nth(1)
    before = tv.inner_text()
    page.locator(".what-if select").first.select_option("clamped:width=1.0")
    expect(page.locator(".what-if .spelling")).to_have_text("clamped:width=1")
    expect(tv).not_to_have_text(before)
    page.locator(".what-if input[type=text]").first.fill("-1")
    expect(page.locator(".what-if .error")).to_have_text(re.compile("width must be in"))
    page.locator(".what-if input[type=text]").first.fill("0.5")
    expect(page.locator(".what-if .error")).to_be_hidden()
    # where nothing was drafted there is nothing to ask
    page.locator(".ca-text .ca-bonus").first.click()
    expect(page.locator(".what-if")).to_contain_text("Nothing was drafted at this token")


@slow
def test_two_rules_side_by_side_part_where_they_part(visit):
    page = visit(path=CACTUS)
    page.check("#compare")
    page.generate()
    pair, problem, ids = load_pair(), NUTS, []
    for rule in ("cactus:delta=0.5", "lossless"):
        response = stream(pair, problem.prompt, rule=rule, top_p=0.95, seed=0)
        ids.append([token for step in response for token in step.token_ids])
    place = next(i for i, (ours, theirs) in enumerate(zip(*ids, strict=False)) if ours != theirs)
    expect(page.locator("#parting")).to_contain_text(f"part at token {place + 1}:")
    assert page.get_by_text("tokens per second").count() == 0  # they wait for each other, so that this says nothing
    for session in (0, 1):
        expect(page.tokens(session)).to_have_count(len(ids[session]))
        expect(page.tokens(session).nth(place)).to_have_class(re.compile("ca-marked"))
    page.click("#parting button")
    assert page.locator(".ca-card h3").count() == 2
    boxes = [page.locator(".session").nth(session).bounding_box() for session in (0, 1)]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


@slow
def test_stop_keeps_what_is_there(visit, server):
    page = visit()
    with server.held() as gate:
        gate.release(3)
        page.click("#generate")
        expect(page.locator(".session .step-count dd")).to_contain_text("3")
        expect(page.locator("#generate")).to_be_disabled()
        with page.expect_response("**/stop"):
            page.click("#stop")
        gate.release()
        expect(page.locator(".session .state")).to_have_text("stopped")
    expect(page.locator("#generate")).to_be_enabled()
    assert 3 <= page.tokens().count() <= 4 * (RELAXED["num_speculative_tokens"] + 1)
    page.tokens().first.click()
    expect(page.locator(".ca-card h3")).to_be_visible()


@slow
def test_two_visitors_take_turns(visit, server):
    first, second = visit(), visit()
    with server.held() as gate:
        gate.release(1)
        first.click("#generate")
        expect(first.locator(".session .step-count dd")).to_contain_text("1")
        second.click("#generate")
        expect(second.locator("#status")).to_have_text("One visitor is ahead of you in the queue…")
        third = visit()
        third.click("#generate")
        expect(third.locator("#status")).to_have_text("2 visitors are ahead of you in the queue…")
        second.click("#stop")  # gives up the place
        expect(second.locator("#status")).to_have_text("Stopped.")
        expect(third.locator("#status")).to_have_text("One visitor is ahead of you in the queue…")
    for page in (first, third):
        page.wait_for_selector(".session .downloads a")
    assert first.tokens().all_inner_texts() == third.tokens().all_inner_texts()


OVERLAP = """() => [...document.querySelectorAll(".session")].map((session) => {
  const [text, card] = [".ca-text", ".ca-card"].map((part) => session.querySelector(part).getBoundingClientRect());
  const across = Math.min(text.right, card.right) - Math.max(text.left, card.left);
  const down = Math.min(text.bottom, card.bottom) - Math.max(text.top, card.top);
  return Math.min(across, down);
})"""
"""By how much each answer and its card overlap, in pixels; negative where there is room between them."""
IN_VIEW = """(token) => {
  const text = token.closest(".ca-text").getBoundingClientRect();
  const card = token.closest(".session").querySelector(".ca-card");
  const [box, below] = [token.getClientRects()[0], card.getBoundingClientRect()];
  return box.top >= Math.max(text.top, 0) - 1 && box.bottom <= Math.min(text.bottom, innerHeight) + 1
    && below.top >= -1 && below.bottom <= innerHeight + 1;
}"""
LONG = EXAMPLES[4]


@slow
@pytest.mark.parametrize(("width", "height", "rules"), [(400, 740, 2), (1200, 800, 1)])
def test_the_card_never_covers_the_answer(visit, width, height, rules):
    page = visit(viewport={"width": width, "height": height})
    page.fill("#prompt", LONG.question)
    if rules == 2:
        page.check("#compare")
    page.generate()
    tokens = page.tokens(rules - 1)
    for place in (0, 20, tokens.count() - 1):
        tokens.nth(place).scroll_into_view_if_needed()
        tokens.nth(place).hover()
        expect(page.locator(".session").nth(rules - 1).locator(".ca-card h3")).to_be_visible()
        assert max(page.evaluate(OVERLAP)) <= 0
    tokens.first.focus()
    for _ in range(tokens.count() - 1):
        page.keyboard.press("ArrowRight")
        assert page.locator(".ca-token:focus").evaluate(IN_VIEW)
    page.evaluate("() => { for (let y = 0; y < document.body.scrollHeight; y += 50) scrollTo(0, y); }")
    assert max(page.evaluate(OVERLAP)) <= 0
    assert page.evaluate("document.documentElement.scrollWidth") == width


@slow
def test_a_phone_shows_all_of_the_comparison_that_the_page_begins_with(visit):
    page = visit(alone=False, viewport={"width": 360, "height": 740}, has_touch=True)
    page.generate()
    headings = page.locator(".session h2 code").all_inner_texts()
    assert headings == [RELAXED["rule"], "lossless"]
    expect(page.locator(".session .meaning").first).to_contain_text("no event moves by more than")
    groups = page.locator("#rule-part optgroup")
    assert [group.get_attribute("label").partition(":")[0] for group in groups.all()] == [
        "Keep the target's distribution", "Truncate", "Collaborate"]  # fmt: skip
    assert groups.locator("option").count() == sum(len(rule.presets) for rule in RULES.values())
    for group, name in ((0, "lossless"), (1, "cactus:delta=0.5"), (2, "clamped:width=1.0")):
        assert groups.nth(group).locator(f"option[value='{name}']").count() == 1
    page.locator(".session").nth(1).locator(".ca-text .ca-recovered").first.tap()
    expect(page.locator(".what-if")).to_be_visible()
    expect(page.locator(".what-if .numbers tbody tr")).to_have_count(5)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        small = page.evaluate(
            """[...document.querySelectorAll("button, select, summary, .session a")].filter(each => each.offsetParent)
               .filter(each => each.getBoundingClientRect().height < 20).map(each => each.outerHTML)"""
        )
        assert small == []


@slow
def test_reloading_keeps_prompt_and_settings(visit):
    page = visit(path=CACTUS)
    page.set("Prompt", "Two lines,\nof & = # % + signs")
    page.set("temperature", "0.7")
    page.set("seed", "")
    page.set("delta nats", "0.25")
    page.set("max-shift", "0.3")
    page.check("#compare")
    page.locator("#compare-part select").first.select_option("clamped:width=1.0")
    page.locator("#compare-part input[type=text]").first.fill("2.5")
    page.reload()
    page.wait_for_selector("body[data-state=ready]")
    expect(page.locator("#prompt")).to_have_value("Two lines,\nof & = # % + signs")
    form = page.locator("#form")
    for label, value in (("temperature", "0.7"), ("seed", ""), ("delta nats", "0.25"), ("max-shift", "0.3")):
        expect(form.get_by_label(label, exact=True).first).to_have_value(value)
    expect(page.locator("#compare-part .spelling")).to_have_text("clamped:width=2.5")
    expect(page.locator("#problem")).to_be_hidden()
    page.click("#another")
    question = page.locator("#prompt").input_value()
    page.reload()
    expect(page.locator("#prompt")).to_have_value(question)


@slow
def test_a_link_gives_the_same_answer_and_holds_no_secret(visit, server):
    page = visit(path=CACTUS, permissions=["clipboard-read", "clipboard-write"])
    page.set("Prompt", LONG.question)
    page.set("temperature", "0.9")
    page.set("seed", "")
    page.set("delta nats", "0.75")
    page.check("#compare")
    page.generate()
    drawn = re.search(r"seed (\d+)", page.locator("#status").inner_text())[1]
    page.click("#copy-link")
    expect(page.locator("#status")).to_contain_text("copied")
    link = page.evaluate("navigator.clipboard.readText()")
    address, _, text = link.partition("#")
    assert address == server.url
    told = parse_qs(text, keep_blank_values=True)
    assert told["rule"] == ["cactus:delta=0.75", "lossless"]
    assert told["seed"] == [drawn]
    run = page.locator(".session a").first.get_attribute("href").split("/")[3]
    assert run not in link  # by which its visitor asks: whoever knows it can read the answer
    other = visit(path=f"#{text}")
    assert other.url == server.url  # the form counts now, not the address
    other.generate()
    for session in (0, 1):
        assert other.tokens(session).all_inner_texts() == page.tokens(session).all_inner_texts()
    other.goto(server.url + "#" + urlencode({"prompt": "Another one"}))  # in the same tab
    expect(other.locator("#prompt")).to_have_value("Another one")
    expect(other.locator("#problem")).to_be_hidden()


@slow
def test_what_a_link_says_wrong_is_told(visit, server):
    page = visit(path="#seed=1")
    for text, *sentences in (
        ("temprature=2", "this page has no setting “temprature”"),
        ("rule=cactus:dleta=1", "the rule “cactus” cannot have “dleta=1” here", "needs a value of delta"),
        ("seed=1&seed=2", "seed stands there twice"),
        ("<b>x</b>", "this page has no setting “<b>x</b>”"),
    ):
        page.goto(f"{server.url}#{text}")
        for sentence in (*sentences, "Not all of this link could be followed"):
            expect(page.locator("#problem")).to_contain_text(sentence)
        assert page.locator("#problem b").count() == 0
