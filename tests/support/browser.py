"""A real headless browser for tests of pages: whichever is installed, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def headless_browser() -> Iterator[Browser]:
    """Start an installed browser (or the one that Playwright installed for itself) and stop it again."""
    installed = os.environ.get("CACTUS_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    with sync_playwright() as playwright:
        own = Path(playwright.chromium.executable_path)
        if installed is None and not own.exists():
            pytest.fail(f"no browser was found: install one of {', '.join(NAMES)}, or run scripts/setup.sh dev")
        # a container's root has no sandbox to give, and only our own pages are opened
        browser = playwright.chromium.launch(
            executable_path=installed, args=["--no-sandbox", "--disable-dev-shm-usage"], headless=True
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched_page(browser: Browser, **options: Any) -> Iterator[tuple[Page, list[str], list[str]]]:
    """Yield an empty page, the addresses that it will ask for, and the complaints of its console."""
    context = browser.new_context(**options)
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append("a dialog"), dialog.dismiss()))
    try:
        yield page, requests, complaints
    finally:
        context.close()
