"""Trace files and pages: nothing lost on the way, every mistake named, and the page opened in a real browser."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch
from support.browser import headless_browser, watched_page
from support.tiny_pair import tiny_pair

from cactus_decoding import Budget, Fate, SamplingParams, load_pair
from cactus_decoding.tracing import read_trace, stream_trace, to_json, trace_response, what_if, write_trace, written
from cactus_decoding.tracing.page import embedded, to_html

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"
VERSION_0_1 = Path(__file__).parents[1] / "data" / "version_0_1" / "trace.jsonl"
HOSTILE = (
    "</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "]]>",
    "\u202e\x00\x07",
    "&amp;\"'`",
    "\ud800",
    "{{ 7 * 7 }}",
)


@pytest.fixture(scope="module")
def trace():
    return trace_response(load_pair(), PROMPT, rule="cactus:delta=1.0", budget=Budget(nats=0.6), top_p=0.98, seed=3)


@pytest.fixture
def saved(trace, tmp_path):
    path = tmp_path / "trace.jsonl"
    write_trace(trace, path)
    return path


# --- files ---


@pytest.mark.parametrize(
    "settings",
    [
        {"rule": "cactus:delta=0.5", "seed": 1},
        {"rule": "typical", "top_p": 0.9, "seed": 2},  # infinite scales
        {"rule": "relaxed_greedy:margin=1.0", "temperature": 0},
        {"rule": "clamped:width=1.0", "budget": math.inf, "verification": "block", "seed": 3},
        {"num_speculative_tokens": "confidence:threshold=0.1", "stop": ["é\n"], "seed": 4},
        {"num_speculative_tokens": 0, "seed": 5},
    ],
)
def test_a_file_gives_back_the_trace_to_the_last_bit(tmp_path, settings):
    for pair in (tiny_pair(), load_pair()):
        made = trace_response(pair, PROMPT, max_new_tokens=20, **settings)
        write_trace(made, tmp_path / "t.jsonl")
        back = read_trace(tmp_path / "t.jsonl")
        assert back == made
        for mine, other in zip(made.positions, back.positions, strict=True):
            assert (mine.rows is None) == (other.rows is None) == (mine.fate is Fate.BONUS)
            if mine.rows is not None:
                seen, again = (what_if(one.rows, made.header.request.rule) for one in (mine, other))
                assert torch.equal(seen.emitted, again.emitted)
                assert seen.emitted_nats == again.emitted_nats
        write_trace(made, tmp_path / "t.jsonl", rows=False)
        assert all(position.rows is None for position in read_trace(tmp_path / "t.jsonl").positions)


def test_every_line_is_json_that_a_browser_reads_too(saved):
    lines = saved.read_text().splitlines()
    kinds = [json.loads(line, parse_constant=pytest.fail)["kind"] for line in lines]
    assert kinds == ["trace", *["step"] * (len(lines) - 2), "end"]


def test_an_interrupted_response_leaves_a_readable_file_and_the_old_one(tmp_path, trace, saved):
    before = saved.read_bytes()
    steps = stream_trace(load_pair(), PROMPT, seed=0)
    part = tmp_path / "trace.jsonl.part"

    growing = written(steps, saved)
    taken = (next(growing), next(growing))
    with pytest.raises(KeyboardInterrupt):
        growing.throw(KeyboardInterrupt)
    assert saved.read_bytes() == before
    back = read_trace(part)
    assert back.steps == taken == tuple(steps.steps)
    assert (back.finish_reason, back.text) == (None, steps.trace.text)
    assert back.metrics == replace(steps.response.metrics, seconds=back.metrics.seconds)
    with part.open("ab") as file:
        file.write(b'{"kind": "step", "positions": [')  # cut off in the middle of a line
    assert read_trace(part) == back
    assert "interrupted" in to_html(back)


def test_nothing_is_left_of_what_never_began(tmp_path):
    written(stream_trace(load_pair(), PROMPT, seed=0), tmp_path / "t.jsonl").close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="cannot write"):
        next(written(stream_trace(load_pair(), PROMPT, seed=0), tmp_path / "missing" / "t.jsonl"))
    assert list(tmp_path.iterdir()) == []


def test_a_finished_response_leaves_nothing_but_its_file(tmp_path):
    path = tmp_path / "t.jsonl"
    response = stream_trace(load_pair(), PROMPT, seed=0, max_new_tokens=8)
    steps = tuple(written(response, path))
    assert list(tmp_path.iterdir()) == [path]
    assert read_trace(path) == response.trace
    assert read_trace(path).steps == steps


def test_what_the_version_before_wrote_is_read():
    trace = read_trace(VERSION_0_1)
    request = trace.header.request
    assert (str(request.rule), request.budget) == ("clamped:width=1.0", Budget(nats=0.02, expected_tokens=40))
    assert (request.sampling, request.max_new_tokens, request.seed) == (SamplingParams(top_k=10, top_p=0.95), 12, 3)
    assert len(trace.token_ids) == trace.metrics.generated == 12
    assert trace.positions[0].budget_left is not None
    for position in trace.positions:
        if position.rows is not None:
            seen = what_if(position.rows, position.rule)
            assert seen.emitted_nats == pytest.approx(position.emitted_nats, abs=1e-6)  # float32 rows
    again = trace_response(load_pair(), trace.header.prompt, request)
    assert again.token_ids == trace.token_ids
    assert "clamped:width=1.0" in to_html(trace)


def test_a_step_whose_target_could_not_be_timed_is_read(saved, trace):
    lines = saved.read_text().splitlines()
    saved.write_text("".join(line + "\n" for line in [lines[0], altered(lines[1], target_seconds=None), *lines[2:]]))
    back = read_trace(saved)
    assert back.steps[0] == replace(trace.steps[0], target_seconds=None)
    assert "in drafting" not in to_html(back)
    assert "in drafting" in to_html(trace)


def altered(line, **changes):
    return json.dumps(json.loads(line) | changes)


def in_position(line, **changes):
    step = json.loads(line)
    step["positions"][0] |= changes
    return json.dumps(step)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [], "trace.jsonl: there is no trace in this file"),
        (lambda lines: ["{broken", *lines], "trace.jsonl, line 1: this is not JSON"),
        (lambda lines: ["[]", *lines], "line 1: there must be an object"),
        (lambda lines: lines[1:], "line 1: this is not a trace of cactus generate --trace"),
        (lambda lines: ['{"x": 1}'], "line 1: this is not a trace"),
        (lambda lines: [altered(lines[0], schema=9)], "line 1: schema is 9, but this version reads schema 1"),
        (lambda lines: [altered(lines[0], seed="x")], "line 1: seed must be an integer, but is 'x'"),
        (lambda lines: [altered(lines[0], top_p=None)], "line 1: top_p must be a number, but is None"),
        (lambda lines: [altered(lines[0], frob=1)], "line 1: a request has no 'frob'"),
        (lambda lines: [altered(lines[0], rule="frob")], "line 1: unknown rule 'frob'"),
        (lambda lines: [altered(lines[0], vocabulary="x")], "line 1: 'vocabulary' must be int, but is 'x'"),
        (lambda lines: [lines[0], lines[2]], "line 2: the steps and places do not follow each other"),
        (lambda lines: [lines[0], altered(lines[1], kind="other")], "line 2: the kind must be 'step' or 'end'"),
        (lambda lines: [lines[0], altered(lines[1], positions=3)], "line 2: 'positions' must be a list, but is '3'"),
        (lambda lines: [lines[0], altered(lines[1], positions=[3])], "line 2, position 0: there must be an object"),
        (
            lambda lines: [lines[0], in_position(lines[1], fate="lost")],
            "position 0: 'fate' must be one of acc",
        ),
        (lambda lines: [lines[0], in_position(lines[1], place=True)], "position 0: 'place' must be int, but is 'True'"),
        (lambda lines: [lines[0], in_position(lines[1], tv="much")], "position 0: 'tv' must be float, but is 'much'"),
        (lambda lines: [lines[0], in_position(lines[1], candidates=[{}])], "position 0: 'token_id' is missing"),
        (lambda lines: [lines[0], in_position(lines[1], rows={"target": None})], "position 0: the rows are damaged"),
        (lambda lines: [*lines, lines[-1]], "there must be nothing behind the end of the trace"),
        (lambda lines: [lines[0], '{"kind": "end"}'], "line 2: the end of a trace has a text, a finish_reason and"),
    ],
)
def test_malformed_files_are_named(saved, change, message):
    lines = change(saved.read_text().splitlines())
    saved.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(ValueError, match=r"trace\.jsonl") as caught:
        read_trace(saved)
    assert message in str(caught.value)


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    "damage",
    [
        {"values": "AAAA"},
        {"values": "?"},
        {"dtype": "int4"},
        {"vocabulary": 7},
        {"token_ids": "/////w=="},
        {"values": 3},
    ],
)
def test_damaged_rows_are_named(saved, role, damage):
    lines = saved.read_text().splitlines()
    step = json.loads(lines[1])
    step["positions"][0]["rows"][role] |= damage
    saved.write_text(lines[0] + "\n" + json.dumps(step) + "\n")
    with pytest.raises(ValueError, match="line 2, position 0: the rows are damaged"):
        read_trace(saved)


# --- commands ---


def test_generate_with_a_trace_writes_the_same_text(run, tmp_path):
    path, page = tmp_path / "t.jsonl", tmp_path / "t.html"
    arguments = ("generate", QUESTION, "--seed", "5", "--stop", "####", "--rule", "cactus:delta=0.5", "--top-p", "0.9")
    code, out, err = run(*arguments, "--trace", str(path))
    assert (code, out) == run(*arguments)[:2]
    assert f"wrote {path}" in err
    made = read_trace(path)
    assert made.text + "\n" == out
    assert made.header.prompt == PROMPT
    assert (made.header.request.seed, made.header.target) == (5, "bundled")
    assert run("trace", str(path)) == (0, f"wrote {page}\n", "")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(tmp_path.iterdir()) == [page, path]


def test_json_and_a_trace_go_together(run, tmp_path):
    path = tmp_path / "t.jsonl"
    arguments = ("generate", QUESTION, "--seed", "5", "--json", "--max-new-tokens", "8")
    code, out, err = run(*arguments, "--trace", str(path))
    assert (code, err) == (0, "")
    plain = json.loads(run(*arguments)[1])
    result = json.loads(out)
    assert result["token_ids"] == plain["token_ids"] == read_trace(path).token_ids
    assert result["fates"] == plain["fates"]


def test_mistakes_are_one_sentence_and_nothing_is_overwritten(run, tmp_path, saved):
    before, page = saved.read_bytes(), tmp_path / "page.html"
    page.write_text("kept")
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    (tmp_path / "gone.jsonl.part").write_bytes(before)
    for arguments, message in (
        (["trace", str(tmp_path / "missing.jsonl")], "missing.jsonl: No such file or directory"),
        (["trace", str(tmp_path / "gone.jsonl")], "an interrupted response left"),
        (
            ["trace", str(bad), "--output", str(page)],
            "bad.jsonl, line 1: this is not a trace of cactus generate --trace",
        ),
        (["trace", str(saved), "--output", str(saved)], "is the trace itself; give another output"),
        (["trace", str(saved), "--output", "/missing/page.html"], "cannot write '/missing/page.html'"),
        (["trace"], "Missing argument"),
        (["generate", QUESTION, "--trace", "/missing/t.jsonl"], "cannot write '/missing/t.jsonl'"),
        (["generate", QUESTION, "--rule", "frob", "--trace", str(saved)], "unknown rule 'frob'"),
        (["generate", "word " * 2000, "--trace", str(saved)], "the prompt must be shorter"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err
        assert err.count("\n") == 1
    assert saved.read_bytes() == before
    assert page.read_text() == "kept"


# --- the page ---


def hostile(trace):
    """Return a trace whose tokens, texts and settings try to break out of the page."""
    steps = []
    for step in trace.steps:
        positions = []
        for position in step.positions:
            text = HOSTILE[position.place % len(HOSTILE)]
            candidates = tuple(replace(one, token=text) for one in position.candidates)
            positions.append(replace(position, token=text, text=text, drafted=text, rule=text, candidates=candidates))
        steps.append(replace(step, positions=tuple(positions)))
    request = replace(trace.header.request, stop=HOSTILE)
    header = replace(trace.header, prompt="".join(HOSTILE), request=request, target=HOSTILE[1], draft=HOSTILE[0],
                     provenance={"x": HOSTILE})  # fmt: skip
    return replace(trace, header=header, steps=tuple(steps), text="".join(p.text for s in steps for p in s.positions))


def test_nothing_breaks_out_of_the_page(trace):
    page = to_html(hostile(trace))
    page.encode()  # no lone surrogates
    assert page.count("<script") == 2 == page.count("</script")
    assert "<img" not in page
    assert "\x00" not in page
    assert "{{ 7 * 7 }}" in unescape(page)
    data = page.partition('id="trace">')[2].partition("</script>")[0]
    assert json.loads(data)["positions"][0]["token"] == HOSTILE[0]
    assert json.loads(embedded(HOSTILE)) == list(HOSTILE)
    assert "<" not in embedded(HOSTILE)


@pytest.fixture(scope="module")
def browser():
    with headless_browser() as started:
        yield started


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
    path.write_text(to_html(trace))
    return path


@pytest.mark.slow
def test_the_text_and_its_tokens(browser, page_file, trace):
    emitted = [position for position in trace.positions if position.emitted]
    with opened(browser, page_file) as page:
        tokens = page.locator(".ca-text .ca-token")
        assert tokens.count() == len(emitted)
        for fate in Fate:
            wanted = sum(position.fate == fate for position in emitted)
            assert page.locator(f".ca-text .ca-{fate}").count() == wanted
        looks = {
            fate: page.locator(f".ca-legend .ca-{fate}").first.evaluate(
                "e => { const s = getComputedStyle(e); return s.textDecorationStyle + s.textDecorationThickness; }"
            )
            for fate in Fate
        }
        assert len(set(looks.values())) == len(Fate)  # told apart without colours
        shown = page.locator(".ca-text").evaluate("e => e.textContent").replace("↵", "").removesuffix("<eos>")
        assert shown == trace.text
        assert page.locator(".ca-charts svg").count() == 3
        spent = math.fsum(position.emitted_nats for position in trace.positions)
        assert f"nats spent: {spent:.4f} of 0.6000" in page.locator(".ca-charts").inner_text()
        assert page.get_by_role("heading", level=1).inner_text().endswith("cactus:delta=1.0")


@pytest.mark.slow
def test_hovering_clicking_and_the_keyboard(browser, page_file, trace):
    with opened(browser, page_file, viewport={"width": 1280, "height": 900}) as page:
        card, tokens = page.locator(".ca-card"), page.locator(".ca-text .ca-token")
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

        place = next(p.place for p in trace.positions if p.fate is Fate.RECOVERED)
        position = trace.positions[place]
        tokens.nth(place).click()
        text = card.inner_text()
        assert "was rejected, and this token was drawn instead" in text
        assert page.locator(".ca-card tbody tr").count() == len(position.candidates)
        assert f"{position.budget_left:.4f} nats" in text
        mine = next(i for i, one in enumerate(position.candidates) if one.token_id == position.token_id)
        row = page.locator(".ca-card tbody tr").nth(mine)
        assert "chosen" in row.inner_text()
        fills = row.locator(".ca-cell-emitted .ca-fill").evaluate(
            "e => e.getBoundingClientRect().width / e.parentElement.clientWidth"
        )
        assert fills == pytest.approx(position.candidates[mine].emitted, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
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
def test_hostile_tokens_are_shown_and_do_nothing(browser, trace, tmp_path):
    path = tmp_path / "hostile.html"
    path.write_text(to_html(hostile(trace)))
    with opened(browser, path) as page:
        tokens = page.locator(".ca-text .ca-token")
        assert tokens.nth(0).inner_text() == "</script>"
        for i in range(len(HOSTILE)):
            tokens.nth(i).click()
        assert page.locator("img").count() == 0
        tokens.nth(1).click()
        assert "<img src=x onerror=alert(1)>" in page.locator(".ca-card").inner_text()
        assert "\u202e" not in page.locator("body").inner_text()


@pytest.mark.slow
def test_the_component_grows_and_begins_anew(browser, page_file, trace):
    positions = [to_json(position) for position in trace.positions]
    with opened(browser, page_file) as page:
        seen = page.evaluate(
            """(positions) => {
              const element = document.createElement("div");
              document.body.append(element);
              const chosen = [];
              const answer = new CactusAnswer(element, {onSelect: (place) => chosen.push(place), budget: "inf"});
              const count = () => element.querySelectorAll(".ca-text .ca-token").length;
              const counts = [];
              for (const position of positions.slice(0, 6)) { answer.append([position]); counts.push(count()); }
              const found = [answer.select(3), answer.select(99), answer.selected];
              answer.mark(2, "here they part");
              const marked = element.querySelector(".ca-marked").dataset.mark;
              answer.mark(null);
              answer.finish({text: positions[0].text});
              const cut = element.querySelectorAll(".ca-cut").length;
              answer.clear();
              const marks = element.querySelectorAll(".ca-marked").length;
              return {counts, found, chosen, marked, cut, left: count(), marks};
            }""",
            positions,
        )
    assert seen == {
        "counts": [1, 2, 3, 4, 5, 6],
        "found": [True, False, None],
        "chosen": [3, None],
        "marked": "here they part",
        "cut": 5,
        "left": 0,
        "marks": 0,
    }
