"""The rules' pages say what the registry says, show what the script computes, and name what a new rule touches."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from support.code_blocks import ROOT, blocks_of
from support.tables import all_of

from cactus_decoding import RULES, parse_rule
from cactus_decoding.core.relaxed_logits import works_as_logits
from cactus_decoding.core.rules.base import GreedyRule, RowRule, Rule

PAGES = ROOT / "docs/rules"
SCRIPT = ROOT / "scripts/rule_pictures.py"
LONG = ROOT / "docs/studies/tables/truncated.md"
RESULT = ROOT / "docs/results/rule_pictures.json"
HEADINGS = ["Formula", "What is guaranteed", "What it costs", "When not to use it", "Spelling and knobs", "Source"]
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


def test_the_table_of_all_rules_says_what_their_classes_say() -> None:
    table = text_of("index").partition("<!-- begin: rules -->")[2].partition("<!-- end: rules -->")[0]
    presets = [preset for rule in RULES.values() for preset in rule.presets]
    assert re.findall(r"\| `(.+)` \| (.+) \| (.+) \|$", table, re.MULTILINE) == [tuple(each) for each in presets]
    assert re.findall(r"^\| \[(.+)\]", table, re.MULTILINE) == [
        rule.title for rule in RULES.values() for _ in rule.presets
    ]


def cells_under(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the tables in a section of a page in docs, without their heads."""
    section = re.split(r"\n#", (ROOT / "docs" / page).read_text().split(f"# {heading}\n")[1])[0]
    bodies = re.findall(r"^\|---.*\n((?:\|.*\n?)+)", section, re.MULTILINE)
    return [row.strip("| ").split(" | ") for body in bodies for row in body.splitlines()]


def names_in(text: str) -> list[str]:
    return sorted(set(re.findall(r"`(\w+)`", text)))


def rules_that(fit: Callable[[type[Rule]], bool]) -> list[str]:
    return sorted(name for name, rule in RULES.items() if fit(rule))


def test_the_table_of_kinds_names_each_relaxed_rule_with_its_kind() -> None:
    rows = cells_under("rules/index.md", "Kinds of rules")
    told = {name: kind.partition(" ")[0] for cell, kind, *_ in rows for name in names_in(cell)}
    assert told == {name: rule.kind for name, rule in RULES.items() if rule.kind != "exact"}


def test_lists_of_rules_on_pages_are_those_of_the_classes() -> None:
    rows, greedy = (
        rules_that(lambda rule: issubclass(rule, RowRule)),
        rules_that(lambda rule: issubclass(rule, GreedyRule)),
    )
    emitting = cells_under("theory.md", "Rules that emit one distribution")
    sources = [row[0] for row in cells_under("proofs.md", "Sources and checks") if "](rules/" in row[0]]
    assert names_in(" ".join(row[0] for row in emitting)) == rows
    assert names_in(" ".join(sources)) == sorted(RULES)
    for page, pattern, expected in (
        ("guarantees", r"Fixed rules are (.+?), and each", rows),
        ("proofs", r"The h of (.+?) is that of p itself", rules_that(lambda rule: rule.whole_draft_row)),
        ("rules/index", r"never emitted, except by (.+?)\. These", greedy),
        ("rules/index", r"At temperature 0 every rule but (.+?) gives greedy", greedy),
    ):
        (found,) = re.findall(pattern, (ROOT / f"docs/{page}.md").read_text(), re.DOTALL)
        assert names_in(found) == expected, (page, found)


def test_ways_in_vllm_are_those_of_the_classes() -> None:
    told = {}
    for cell, drawn, greedy in cells_under("vllm_reference.md", "Rules"):
        told |= dict.fromkeys(names_in(cell), (drawn.startswith("work"), not greedy.startswith("status 400")))
    assert told == {
        name: (works_as_logits(rule) and not issubclass(rule, GreedyRule), works_as_logits(rule))
        for name, rule in RULES.items()
    }


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


PAGE = (ROOT / "docs/adding_a_rule.md").read_text()
LISTED = re.findall(r"^\| `([\w/]+(?:/|\.)[\w.]+)` \|", PAGE, re.MULTILINE)
COPIED = ("src", "tests", "docs", "scripts", "benchmarks", "README.md", "CHANGELOG.md", "pyproject.toml")
ASKED = """
import json
import cactus_decoding
from cactus_decoding.cli import main
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from cactus_decoding.lab.playground.form import rule
main(["rules"])
print(json.dumps([str(cactus_decoding.Boosted(3)), "boosted" in FAMILIES, rule("boosted")]))
"""
SECOND_HAND = """        case "boosted":
            g = torch.maximum(q, (rule.factor * q).clamp(max=0.5))
            return g, torch.where(q < 1, (1 - g) / (1 - q), 1.0)
"""


def edits() -> dict[str, dict[str, str]]:
    """Return, by file, what is put before which of its lines; a new file has none."""
    (page,) = [block.text for block in blocks_of(PAGE) if block.language == "markdown"]
    return {
        "src/cactus_decoding/core/rules/boosted.py": {"": f'"""Boosted: multiply."""\n\n{blocks_of(PAGE)[0].text}'},
        "src/cactus_decoding/core/rules/__init__.py": {
            "from cactus_decoding.core.rules.cactus import": "from cactus_decoding.core.rules.boosted import Boosted\n",
            "ClampedRatio, Ensemble, Lenience": "Boosted, ",
        },
        "src/cactus_decoding/__init__.pyi": {
            "from .core.rules import Cactus as": "from .core.rules import Boosted as Boosted\n"
        },
        "docs/rules/boosted.md": {"": page},
        "docs/rules/index.md": {
            "| [`clamped`](clamped.md) | coll": "| [`boosted`](boosted.md) | truncation | factor·q(x) | factor |\n"
        },
        "docs/vllm_reference.md": {"`clamped`, `ensemble`, `lenience`": "`boosted`, "},
        "docs/proofs.md": {
            "| [`clamped`](rules/clamped.md) | this": "| [`boosted`](rules/boosted.md) | none | – | – |\n"
        },
        "tests/support/rules_under_test.py": {
            '    "ensemble:weight=0"': '    "boosted:factor=1",\n    "boosted:factor=3",\n',
            '        case "ensemble":': SECOND_HAND,
            '    "cactus:delta=1",\n    "cactus:delta=1,solver=exact",': '    "boosted:factor=3",\n',
            '"lossless", "cactus", ': '"boosted", ',
            '    "cactus:delta=0",\n    "cactus:delta=0,solver=exact",': '    "boosted:factor=1",\n',
        },
        "CHANGELOG.md": {"- Acceptance rules have": "- `boosted`, a rule.\n"},
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository to which the rule was added."""
    folder = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    for name, added in edits().items():
        path = folder / name
        text = path.read_text() if path.exists() else ""
        for line, new in added.items():
            assert line in text, name
            text = text.replace(line, new + line, 1)
        path.write_text(text)
    return folder


def run(copy: Path, *command: str) -> str:
    """Run Python on the copy, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(copy / "src"), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_names_nine_files_and_no_other_is_touched() -> None:
    assert list(edits()) == LISTED
    assert len(LISTED) == 9


@pytest.mark.slow
def test_the_command_line_the_playground_and_studies_know_the_rule(copy: Path) -> None:
    listed, _, answer = run(copy, "-c", ASKED).rpartition("\n[")
    assert "boosted:factor=2.0" in listed
    spelled, studied, shown = json.loads(f"[{answer}")
    assert spelled == "boosted:factor=3.0"
    assert studied
    assert shown["title"] == "Boosted"
    assert [(knob["name"], knob["doc"], knob["range"]) for knob in shown["knobs"]] == [
        ("factor", "how many times as likely; 1 is lossless", [1.01, 10000.0])
    ]


@pytest.mark.slow
def test_the_tests_take_the_rule_in(copy: Path) -> None:
    files = ["tests/core/rules", "tests/core", "tests/core/verification", "tests/core/test_audit.py"]
    files += ["tests/docs/test_rule_pages.py", "tests/lab/playground/test_form.py", "tests/engines",
              "tests/lab/reporting/test_report.py"]  # fmt: skip
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow")
    told = run(copy, *options, "-k", "boosted or families_cover or kinds or lists_of_rules or ways_in_vllm", *files)
    assert re.search(r"^\d{2,} passed", told, re.MULTILINE), told


@pytest.mark.slow
def test_one_command_draws_its_pictures_and_writes_every_table(copy: Path) -> None:
    run(copy, "scripts/rule_pictures.py")
    assert (copy / "docs/rules/pictures/boosted_cost.svg").exists()
    assert (copy / "docs/rules/pictures/boosted_lift.svg").exists()
    assert "| `boosted:factor=4` |" in (copy / "docs/rules/boosted.md").read_text()
    assert "| `boosted:factor=4` |" in (copy / "docs/studies/tables/truncated.md").read_text()
    assert "| `boosted:factor=2.0` | Given the drafted token" in (copy / "docs/rules/index.md").read_text()
