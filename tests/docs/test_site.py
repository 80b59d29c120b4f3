"""The documentation site builds without a warning, names everything public, and needs nothing from elsewhere."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import zlib
from html import unescape
from pathlib import Path
from types import ModuleType

import pytest
from support.browser import watched_page
from support.code_blocks import ROOT
from support.legible import illegible
from support.tables import all_of

import cactus_decoding

# LaTeX that a reader sees, outside of code
SEEN_LATEX = re.compile(r"\$\$|\$\\|\\(?:[a-zA-Z]{2,}|[(\[])")
UNSEEN = re.compile(r"<(pre|code|script|style|math|head)\b.*?</\1>", re.DOTALL)
# What browsers fetch by themselves; links that a reader may follow are no such thing.
FETCHED = re.compile(r"""<(?:script|img|iframe|source|audio|video)[^>]+?src=["']?(?:https?:)?//""")
STYLED = re.compile(r"""<link[^>]+rel=["']?(?:stylesheet|preconnect|preload|icon)[^>]+href=["']?(?:https?:)?//""")


MOVED = {
    "laptop_benchmarks": "performance/#gguf-files",
    "vllm_benchmarks": "performance/#vllm",
    "study": "studies/relaxing/",
    "studies/rules": "studies/relaxing/",
    "studies/real_pair": "studies/relaxing/",
    "relaxing_study": "studies/relaxing/",
    "training_study": "studies/training/",
    "trees_study": "studies/trees/",
    "constraints": "studies/constraints/",
    "planning": "studies/planning/",
}
"""Where pages are that had an address of their own."""


def public_names() -> set[str]:
    """Return where everything is defined that the package and its sub-packages list as theirs, by full names."""
    found = {cactus_decoding.__name__, *(each.name for each in _walk() if each.ispkg)}
    modules = [importlib.import_module(name) for name in found - {"cactus_decoding.cli"}]  # has a page of its own
    return {_home(module, name) for module in modules for name in getattr(module, "__all__", ())}


def _home(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if module is not cactus_decoding:
        return f"{module.__name__}.{name}"
    stub = Path(cactus_decoding.__file__).with_suffix(".pyi").read_text()
    [home] = re.findall(rf"^from (\.[\w.]+) import {name} as {name}$", stub, re.MULTILINE)
    return f"cactus_decoding{home}.{name}"


def _walk() -> list[pkgutil.ModuleInfo]:
    return list(pkgutil.walk_packages(cactus_decoding.__path__, "cactus_decoding."))


def inventory(path: Path) -> set[str]:
    """Return the names that a site describes, from the inventory that mkdocstrings writes."""
    compressed = path.read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(compressed).decode().splitlines()}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built strictly."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    build = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert build.returncode == 0, build.stderr
    assert "WARNING" not in build.stderr
    return site


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1200])
def test_tables_of_every_page_can_be_read(browser, site: Path, width: int) -> None:
    pages = sorted(path for path in site.rglob("*.html") if str(path.parent.relative_to(site)) not in MOVED)
    wrong = {}
    with watched_page(browser, viewport={"width": width, "height": 900}) as (page, _, _):
        for path in pages:
            page.goto(path.as_uri())
            if found := illegible(page):
                wrong[str(path.relative_to(site))] = found[:5]
    assert wrong == {}
    assert sum("<table" in path.read_text() for path in pages) > 20


@pytest.mark.slow
def test_the_site_is_whole(site: Path) -> None:
    described = inventory(site / "objects.inv")
    assert public_names() <= described
    reference = "".join(page.read_text() for page in (site / "reference").rglob("*.html"))
    shown = set(re.findall(r'<h2 id="[^"]*">([\w.]+)<', reference))
    modules = {each.name for each in _walk()}
    assert {name.partition(".")[2] for name in modules if not name.startswith("cactus_decoding.cli")} <= shown

    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        html = page.read_text()
        assert not FETCHED.search(html), page
        assert not STYLED.search(html), page
        assert "arithmatex" not in html, f"{page}: a formula was not turned into MathML"
        assert not SEEN_LATEX.findall(unescape(re.sub(r"<[^>]+>", "", UNSEEN.sub("", html)))), page
        assert not re.search(
            r"^\s*&gt;&gt;&gt;", re.sub(r"<[^>]+>", "", re.sub(r"<pre.*?</pre>", "", html, flags=re.S)), re.M
        )
    assert "<math" in (site / "rules/cactus/index.html").read_text()
    assert "image/svg" in (site / "notebooks/what_a_rule_costs/index.html").read_text()
    for name in cactus_decoding.__all__:
        assert f">{name}<" in unescape((site / "reference/index.html").read_text())


@pytest.mark.slow
@all_of("old", MOVED)
def test_an_old_address_leads_to_where_the_page_is(site: Path, old: str) -> None:
    page, _, heading = MOVED[old].partition("#")
    up = "../" * len(Path(old).parts)
    assert f"url={up}{MOVED[old]}" in (site / old / "index.html").read_text()
    assert not heading or f'id="{heading}"' in (site / page / "index.html").read_text()


@pytest.mark.slow
def test_words_are_explained_on_hover(site: Path) -> None:
    page = (site / "guarantees/index.html").read_text()
    for word in ("nats", "q", "p", "top-p"):
        assert re.search(rf'<abbr title="[^"]+">{word}</abbr>', page), word
    assert "-<abbr" not in page
    assert "<abbr" not in (site / "reference/generating/index.html").read_text()
