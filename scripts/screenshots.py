"""Makes the pictures of docs/traces_and_playground.md by driving the real playground in a headless browser.

    python scripts/screenshots.py                     # docs/images/playground.png, playground.gif and playground.json

Prompt, rules and seed are fixed, so the answers are the same every time; the figure that depends on the machine's load
(tokens per second) is left out. Needs the extras 'playground' and 'dev', and an installed Chromium or Chrome.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # the tests drive the same server with the same browser

from playwright.sync_api import Browser, Page  # noqa: E402
from results import parse  # noqa: E402
from support.browser import headless_browser  # noqa: E402
from support.playground_server import Running, running  # noqa: E402

from cactus_decoding.cli.options import prepare_process  # noqa: E402
from cactus_decoding.core.files.provenance import provenance  # noqa: E402
from cactus_decoding.core.files.writing import as_json  # noqa: E402
from cactus_decoding.zoo import RELAXED  # noqa: E402

SECOND, SEED = "lossless", 0
"""Beside what the form holds at first: the prompt, the relaxed rule and what it is kept away from."""
LARGEST = 1_000_000
"""Bytes of a picture."""
STILL = {"width": 1500, "height": 1000}
MOVING = {"width": 1440, "height": 1060}
ANIMATION_WIDTH = 1000
STEADY = "* { transition: none !important; caret-color: transparent }"
NO_SPEED = ".metrics > :last-child { display: none }"
"""Of an answer alone: beside another one the page shows none."""


def open_page(browser: Browser, server: Running, viewport: dict[str, int], *, compare: bool, scale: int = 1) -> Page:
    """Open the page with prompt, rules and seed filled in."""
    # the style below is ours, not the page's: its own policy would refuse it
    page = browser.new_context(viewport=viewport, device_scale_factor=scale, bypass_csp=True).new_page()
    page.goto(server.url)
    page.wait_for_selector("body[data-state=ready]")
    page.add_style_tag(content=STEADY if compare else STEADY + NO_SPEED)
    page.set_checked("#compare", compare)
    page.evaluate("for (const part of document.querySelectorAll('#settings details')) part.open = true")
    page.get_by_label("seed", exact=True).fill(str(SEED))
    page.evaluate("for (const part of document.querySelectorAll('#settings details')) part.open = false")
    return page


def settle(page: Page) -> None:
    """Wait until whatever was asked about a token is drawn."""
    page.wait_for_function("() => !document.querySelector('.what-if[aria-busy=true]')")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shoot(page: Page) -> bytes:
    """Return a picture of the top of the page, where everything that was asked has been drawn."""
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    settle(page)
    return page.screenshot()


def still(browser: Browser, server: Running) -> bytes:
    """Return a picture of two answers, with the card of the token where they part."""
    page = open_page(browser, server, STILL, compare=True, scale=2)
    page.click("#generate")
    page.wait_for_selector(".session:last-child .downloads a")
    page.wait_for_selector("#parting button")
    return shoot(page)


def frames(browser: Browser, server: Running) -> Iterator[tuple[bytes, int]]:
    """Yield pictures and how many milliseconds each is shown: an answer grows, a token is looked at, a knob moves."""
    page = open_page(browser, server, MOVING, compare=False)
    yield shoot(page), 900
    with server.held() as gate:
        page.click("#generate")
        steps = 0
        while page.locator(".session .downloads a").count() == 0:
            gate.release()
            steps += 1
            page.wait_for_function(
                """steps => Number.parseInt(document.querySelector(".session .step-count dd")?.textContent) >= steps
                || document.querySelector(".session .downloads a")""",
                arg=steps,
            )
            yield shoot(page), 140
    yield shoot(page), 900
    page.locator(".ca-text .ca-relaxed").first.click()
    page.wait_for_selector(".what-if .curve svg")
    page.mouse.move(0, 0)
    yield shoot(page), 1800
    slider = page.locator(".what-if input[type=range]")
    for step in range(24):
        for _ in range(12):
            slider.press("ArrowLeft" if step < 16 else "ArrowRight")
        yield shoot(page), 120
    yield shoot(page), 2200


def as_gif(pictures: list[tuple[bytes, int]]) -> bytes:
    """Return an animation with one palette for all frames, as small as Pillow makes it."""
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data, _ in pictures]
    height = round(ANIMATION_WIDTH * images[0].height / images[0].width)
    scaled = [image.resize((ANIMATION_WIDTH, height), Image.Resampling.LANCZOS) for image in images]
    palette = scaled[-1].quantize(255, method=Image.Quantize.FASTOCTREE)
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in scaled]
    shown, out = [duration for _, duration in pictures], io.BytesIO()
    first.save(out, "GIF", save_all=True, append_images=others, duration=shown, loop=0, optimize=True, disposal=1)
    return out.getvalue()


def as_png(data: bytes) -> bytes:
    """Return the picture with 256 colours, which no one tells from all of them in a page like this."""
    out, whole = io.BytesIO(), Image.open(io.BytesIO(data)).convert("RGB")
    few = whole.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(out, "PNG", optimize=True)
    return out.getvalue()


def main() -> None:
    """Make the pictures, and write them only when all of them are there."""
    folder = parse(__doc__, folder=(ROOT / "docs" / "images", "where the pictures go")).folder
    prepare_process(None, small=True)
    with running() as server, headless_browser() as browser:
        made = {"playground.png": as_png(still(browser, server))}
        made["playground.gif"] = as_gif(list(frames(browser, server)))
    for name, data in made.items():
        if len(data) > LARGEST:
            raise SystemExit(f"{name} has {len(data)} bytes; allowed are {LARGEST}")
    about = {"command": "python scripts/screenshots.py", "first": RELAXED, "second": SECOND, "seed": SEED}
    made["playground.json"] = (as_json(provenance(about), indent=2) + "\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (folder / name).write_bytes(data)
        print(f"{folder / name}: {len(data)} bytes")


if __name__ == "__main__":
    main()
