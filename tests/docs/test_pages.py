"""Every code block of the README and of the documentation site does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.code_blocks import ROOT, RUN, blocks_of, commands_of, run_page

from cactus_decoding.cli import help
from cactus_decoding.cli.app import app

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
WITH_CODE = [name for name, page in zip(NAMES, PAGES, strict=True) if blocks_of(page.read_text())]

# Blocks that need what tests cannot have, each with its reason on the page: the number may not grow unseen.
NOT_RUN = {
    "README.md": 1,
    "docs/adding_a_rule.md": 2,
    "docs/conformance.md": 4,
    "docs/evaluation.md": 1,
    "docs/installation.md": 6,
    "docs/laptop.md": 7,
    "docs/performance.md": 1,
    "docs/proposals.md": 1,
    "docs/reproduce.md": 1,
    "docs/structured_answers.md": 1,
    "docs/traces_and_playground.md": 1,
    "docs/vllm.md": 12,
    "docs/vllm_reference.md": 1,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_CODE)
def test_the_blocks_of_a_page_run_in_order(name: str, run, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / name, run, lambda: capsys.readouterr().out)


def test_few_blocks_are_not_run() -> None:
    found = {}
    for name, page in zip(NAMES, PAGES, strict=True):
        blocks = [block for block in blocks_of(page.read_text()) if block.language in RUN]
        if marked := [block for block in blocks if block.reason_not_to_run is not None]:
            found[name] = len(marked)
    assert found == NOT_RUN


def test_a_page_is_cut_into_its_blocks() -> None:
    page = "text\n\n```python\nx = 1\n```\n\n<!-- output -->\n\n```text\n1\n```\n\n"
    page += "    ```bash\n    make test\n    ```\n"
    python, output, console = blocks_of(page)
    assert (python.language, python.text, python.mark, python.line) == ("python", "x = 1\n", "", 3)
    assert (output.language, output.mark) == ("text", "output")
    assert console.text == "make test\n"
    assert list(commands_of("cactus eval \\\n  --seed 1  # why\n# all a comment\n")) == [
        ["cactus", "eval", "--seed", "1"]
    ]
    assert list(commands_of("curl -d '{\n}' x\ncactus generate \"a \\\nb\"\n")) == [
        ["curl", "-d", "{\n}", "x"],
        ["cactus", "generate", "a b"],
    ]


@pytest.mark.parametrize(
    "page",
    [
        "```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```\n",
        "```sh\nrm x\n```\n",
        "```bash\nrm x\n```\n",
        "```bash\ncactus generate\n```\n",
        "```bash\ncactus play --no-browser\n```\n",
        "```bash\nmake no-such-target\n```\n",
        "```bash\npip install 'cactus-decoding[none]'\n```\n",
        "<!-- not run: -->\n```bash\nrm x\n```\n",
    ],
)
def test_a_page_that_is_wrong_fails(page: str, run, capsys, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises(AssertionError):
        run_page(path, run, lambda: capsys.readouterr().out)


def test_the_examples_of_every_command_can_be_parsed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    imported = help.commands_of(app)
    for command in imported.values():
        for line in (command.epilog or "").split("\n\n"):
            if not line.startswith("cactus "):
                continue
            first, second, *arguments = next(commands_of(line.partition(" <")[0]))
            assert first == "cactus", line
            assert imported[second].make_context(second, arguments) is not None
