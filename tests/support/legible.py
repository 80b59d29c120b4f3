"""What a reader cannot read on a page: numbers that break inside, tables that are cut, texts that lie on each other."""

from __future__ import annotations

from playwright.sync_api import Page

_BROKEN = r"""() => {
  const NUMBER = /[-−]?\d[\d.,]*(?: \([-−]?[\d.]+ to [-−]?[\d.]+\))?/g; // an interval belongs to it
  const broken = [];
  for (const cell of document.querySelectorAll("table td, table th")) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const found of node.data.matchAll(NUMBER)) {
        const range = document.createRange();
        range.setStart(node, found.index);
        range.setEnd(node, found.index + found[0].length);
        const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.bottom)));
        if (lines.size > 1) broken.push(cell.textContent.trim());
      }
    }
  }
  return broken;
}"""
_CUT = """() => [...document.querySelectorAll("table")].filter((table) => {
  if (!table.offsetParent) return false;
  let box = table.getBoundingClientRect();
  for (let around = table.parentElement; around; around = around.parentElement) {
    const style = getComputedStyle(around), edge = around.getBoundingClientRect();
    if (["auto", "scroll"].includes(style.overflowX)) { // whatever it hides can be scrolled to
      box = edge;
      continue;
    }
    if (box.right > edge.right + 1 && ["hidden", "clip"].includes(style.overflowX)) return true;
  }
  return box.right > document.documentElement.clientWidth + 1;
}).map((table) => table.textContent.trim().slice(0, 80))"""
_ON_EACH_OTHER = """() => {
  const texts = [...document.querySelectorAll("svg g[id^='text_'], svg text")]
    .map((each) => [each.getBoundingClientRect(), each.id || each.textContent]).filter(([box]) => box.width > 0);
  const pairs = [];
  for (let i = 0; i < texts.length; i += 1) for (let j = 0; j < i; j += 1) {
    const [[a, first], [b, second]] = [texts[i], texts[j]];
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (Math.min(across, down) > 0.5) pairs.push(`${second} and ${first}`);
  }
  return pairs;
}"""


def illegible(page: Page) -> list[str]:
    """Return numbers of tables that break inside, tables that are cut, and a page that is wider than the window."""
    broken = [f"breaks inside: {text}" for text in page.evaluate(_BROKEN)]
    cut = [f"cut: {text}" for text in page.evaluate(_CUT)]
    width, window = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    return broken + cut + ([f"{width} pixels wide in a window of {window}"] if width > window else [])


def overlapping_texts(page: Page) -> list[str]:
    """Return the texts of the pictures on a page (those that stand in it, not beside it) that lie on each other."""
    return list(page.evaluate(_ON_EACH_OTHER))
