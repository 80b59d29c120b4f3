"""The rules' pages say what the registry says, and show what the script computes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from support.code_blocks import ROOT
from support.tables import all_of

from cactus_decoding import RULES, parse_rule

PAGES = ROOT / "docs/rules"
SCRIPT = ROOT / "scripts/rule_pictures.py"
LONG = ROOT / "docs/studies/tables/truncated.md"
RESULT = ROOT / "docs/results/rule_pictures.json"
HEADINGS = [
    "Formula",
    "What is guaranteed",
    "What it costs",
    "When not to use it",
    "Spelling and knobs",
    "Source",
]
SPELLING = re.compile(rf"`((?:{'|'.join(RULES)})(?::[^`…]*)?)`")


NAMES = [str(page.relative_to(ROOT)) for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])]


def text_of(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def test_every_rule_has_a_page_and_no_page_is_left_over() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*RULES, "index"}


@all_of("name", RULES)
def test_a_page_has_all_parts_and_names_every_knob(name: str) -> None:
    page = text_of(name)
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == HEADINGS
    knobs = page.partition("## Spelling and knobs")[2].partition("## Source")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", knobs, re.MULTILINE)) == {field.name for field in fields(RULES[name])}
    assert f"cactus_decoding.core.rules.{name}.{RULES[name].__name__}" in page
    assert f"pictures/{name}_cost.svg" in page


@all_of("name", NAMES)
def test_every_spelling_on_a_page_parses(name: str) -> None:
    for spelled in SPELLING.findall((ROOT / name).read_text()):
        if re.search(r"=[a-z](,|$)", spelled):  # a letter stands for a value, as in relaxed_greedy:margin=m
            continue
        if ":" in spelled or spelled in ("lossless", "typical"):
            parse_rule(spelled)


def test_what_the_command_line_guarantees_can_be_found_on_a_page() -> None:
    for spelled in (preset.spelling for rule in RULES.values() for preset in rule.presets):
        rule = parse_rule(spelled)
        knobs = dict(part.split("=") for part in spelled.partition(":")[2].split(",") if part)
        assert all(f"`{knob}`" in text_of(rule.name) for knob in knobs)


def test_the_table_of_all_rules_says_what_their_classes_say() -> None:
    table = text_of("index").partition("<!-- begin: rules -->")[2].partition("<!-- end: rules -->")[0]
    presets = [preset for rule in RULES.values() for preset in rule.presets]
    assert re.findall(r"\| `(.+)` \| (.+) \| (.+) \|$", table, re.MULTILINE) == [tuple(each) for each in presets]
    assert re.findall(r"^\| \[(.+)\]", table, re.MULTILINE) == [
        rule.title for rule in RULES.values() for _ in rule.presets
    ]


def render(folder: Path, *options: str) -> None:
    """Run the script on copies of the pages in a folder."""
    for page in PAGES.glob("*.md"):
        shutil.copy(page, folder)
    shutil.copy(LONG, long := folder / "long.txt")
    command = [sys.executable, str(SCRIPT), "--pages", str(folder), "--long", str(long), *options]
    assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.slow
def test_pictures_and_tables_are_rendered_from_the_result_file(tmp_path: Path) -> None:
    render(tmp_path, "--only-render")
    for path in (*PAGES.glob("*.md"), *PAGES.glob("pictures/*.svg")):
        assert (tmp_path / path.relative_to(PAGES)).read_text() == path.read_text(), path
    assert (tmp_path / "long.txt").read_text() == LONG.read_text()


@pytest.mark.slow
def test_the_result_file_is_what_the_script_computes(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    render(tmp_path, "--results", str(path))
    ours, theirs = (json.loads(each.read_text()) for each in (path, RESULT))
    assert ours["provenance"]["arguments"] == theirs["provenance"]["arguments"]
    assert_close(ours | {"provenance": None}, theirs | {"provenance": None})


def assert_close(ours: object, theirs: object) -> None:
    """Compare all numbers of two results; processors differ in a last digit."""
    if isinstance(ours, dict):
        assert isinstance(theirs, dict)
        assert ours.keys() == theirs.keys()
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(ours, list):
        assert isinstance(theirs, list)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other)
    else:
        assert ours == (pytest.approx(theirs, rel=1e-5, abs=1e-9) if isinstance(theirs, float) else theirs)
