"""Pages say what is so: every code block runs, formulas are shown, and quoted messages, tables and outputs are ours."""

from __future__ import annotations

import ast
import doctest
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.code_blocks import COMMANDS, ROOT, RUN, blocks_of, commands_of, run_page
from support.tables import all_of

from cactus_decoding import generate, load_pair
from cactus_decoding.cli import help
from cactus_decoding.cli.app import app
from cactus_decoding.lab.playground.form import FormLimits, form
from cactus_decoding.zoo.word_problems import EXAMPLES, Example, extract_answer
from scripts.pages import put
from studies.conformance.page import TABLES

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
    "docs/performance.md": 3,
    "docs/proposals.md": 1,
    "docs/reproduce.md": 1,
    "docs/structured_answers.md": 1,
    "docs/traces_and_playground.md": 1,
    "docs/vllm.md": 15,
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
    (command,) = commands_of("cactus eval \\\n  --seed 1  # why\n# all a comment\n")
    assert command == ["cactus", "eval", "--seed", "1"]
    first, second = commands_of("curl -d '{\n}' x\ncactus generate \"a \\\nb\"\n")
    assert (first, second) == (["curl", "-d", "{\n}", "x"], ["cactus", "generate", "a b"])


@all_of("page", [
    "```python\nprint(1)\n```\n<!-- output -->\n```text\n2\n```\n",
    "```sh\nrm x\n```\n",
    "```bash\nrm x\n```\n",
    "```bash\ncactus generate\n```\n",
    "```bash\ncactus play --no-browser\n```\n",
    "```bash\nmake no-such-target\n```\n",
    "```bash\npip install 'cactus-decoding[none]'\n```\n",
    "<!-- not run: -->\n```bash\nrm x\n```\n",
])  # fmt: skip
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


# code, and displayed formulas, which the build turns into MathML
CODE = re.compile(r"^ *```.*?^ *```$|^(?: {4}.*\n)+|^\$\$.*?\$\$$|(`+).*?\1|<!--.*?-->", re.DOTALL | re.MULTILINE)
LATEX = re.compile(r"\$\\?[^\s$]|\\(?:[a-zA-Z]+|[(\[])")
EATEN = re.compile(r"\w\*(?=\w)")


def wrong(page: str) -> list[str]:
    """Return LaTeX, and asterisks within words that begin emphasis, outside of code and displayed formulas."""
    text = CODE.sub("", page)
    return [found[0] for each in (LATEX, EATEN) for found in each.finditer(text)]


@all_of("page", NAMES)
def test_a_page_shows_its_formulas(page: str) -> None:
    assert wrong((ROOT / page).read_text(encoding="utf-8")) == []


def test_formulas_that_are_not_shown_are_found() -> None:
    assert wrong("keeps r*ₖ, where r*ᵢ = 1") == ["r*", "r*"]
    assert wrong("asks for $q(n) \\ge 1$") == ["$q", "\\ge"]
    assert wrong("the least \\(E / q\\)") == ["\\("]
    assert wrong("*so* it is, **too**: 1.6\\*, `r*k`, `$x`\n\n$$\n\\frac{1}{2}\n$$\n\n```bash\necho $HOME\n```\n") == []


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.parent.name)
def test_the_tables_are_those_of_the_result_files(page: Path, tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(page.read_text())
    put(copy, {name: make() for name, make in TABLES[page].items()})
    assert copy.read_text() == page.read_text()


MESSAGES = ROOT / "docs" / "troubleshooting.md"
# Quoted, but of others: the shell's and Python's.
FOREIGN = {"bash: cactus: command not found", "ModuleNotFoundError: No module named 'cactus_decoding'"}


def sentences(path: Path) -> list[str]:
    """Return all texts of a source file, with … where something is put in."""
    if path.suffix == ".sh":
        return [re.sub(r"\$\(.*?\)|\$\{?\w+\}?", "…", text) for text in re.findall(r'"([^"]*)', path.read_text())]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


SENTENCES = [
    " ".join(text.split())
    for path in (*(ROOT / "src").rglob("*.py"), *(ROOT / "scripts").glob("setup*.sh"))
    for text in sentences(path)
]


def messages(page: str) -> list[str]:
    """Return what first cells quote and what reads as a sentence: names and options are none."""
    cells = [
        line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and not line.startswith("| message")
    ]
    quoted = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [text for text in quoted if len(text.split()) > 2 and text not in FOREIGN]


def is_said(message: str) -> bool:
    """Say whether some text of the sources has all parts of a message, in order."""
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip()]
    wanted = re.compile(".*".join(parts))
    return any(wanted.search(text) for text in SENTENCES)


@all_of("message", messages(MESSAGES.read_text()))
def test_a_quoted_message_is_one_of_the_package(message: str) -> None:
    assert is_said(message), message


def test_a_message_that_nobody_says_is_found_out() -> None:
    assert len(messages(MESSAGES.read_text())) > 8
    assert not is_said("a draft is lacking for target …")
    assert not is_said("… runs are in … of … already")


SCRIPT = ROOT / "scripts/run_notebook.py"
NOTEBOOK = ROOT / "docs/notebooks/what_a_rule_costs.ipynb"


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def text_of(cell: dict[str, Any]) -> str:
    return "".join(line for output in cell["outputs"] for line in output.get("text", []))


def test_the_notebook_is_committed_with_its_outputs() -> None:
    cells = code_cells(NOTEBOOK)
    assert len(cells) >= 5
    for cell in cells:
        assert cell["outputs"], cell["id"]
        assert all(output["output_type"] != "error" for output in cell["outputs"])
    assert any("image/svg+xml" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    assert json.loads(NOTEBOOK.read_text())["metadata"]["provenance"]["commit"]


@pytest.mark.slow
def test_the_notebook_gives_its_committed_outputs(tmp_path: Path) -> None:
    path = tmp_path / "again.ipynb"
    done = subprocess.run([sys.executable, str(SCRIPT), "--output", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for ours, theirs in zip(code_cells(path), code_cells(NOTEBOOK), strict=True):
        assert len(ours["outputs"]) == len(theirs["outputs"])
        if "varies" not in theirs["metadata"].get("tags", []):  # samples differ between kinds of processors
            assert text_of(ours) == text_of(theirs)


QUESTIONS = {example.question for example in EXAMPLES}
ASKS = re.compile(r"\bHow (many|much)\b[^?]*\?\s*$|^Question: \w")
# Where problems are made, and where one stands for any text.
MAKERS = ("zoo/word_problems/", "training/")


def questions(text: str) -> Iterator[str]:
    """Yield the questions that a string puts to a model, without what is wrapped around them."""
    text = text.removesuffix("\nAnswer:")
    if ASKS.search(text):
        yield text.removeprefix("Question: ")


def in_python(code: str) -> Iterator[str]:
    """Yield the questions of a piece of Python, those of its doctests too."""
    tree = ast.parse(code)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value not in docstrings:
                yield from questions(node.value)
            else:
                for example in doctest.DocTestParser().get_examples(node.value):
                    yield from in_python(example.source)


def in_page(page: str) -> Iterator[str]:
    for block in blocks_of(page):
        if block.language == "python":
            yield from in_python(block.text)
        elif block.language in COMMANDS:
            for words in commands_of(block.text):
                for word in words:
                    yield from questions(word)


def asked(path: Path) -> list[str]:
    """Return what a file puts to the bundled pair."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return list(in_page(text))
    if path.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [question for cell in cells for question in in_python("".join(cell["source"]))]
    return list(in_python(text))


FILES = [
    ROOT / "README.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "docs").rglob("*.ipynb"),
    *(ROOT / "examples").glob("*.py"),
    *(path for path in (ROOT / "src").rglob("*.py") if not any(maker in path.as_posix() for maker in MAKERS)),
]


@all_of("path", FILES)
def test_what_a_file_asks_is_an_example(path: Path) -> None:
    assert set(asked(path)) <= QUESTIONS


def test_questions_are_found_wherever_they_stand() -> None:
    where = {path.relative_to(ROOT).parts[0] for path in FILES if asked(path)}
    assert where == {"README.md", "docs", "examples", "src"}
    assert asked(ROOT / "docs/notebooks/what_a_rule_costs.ipynb")
    assert list(in_python('def f():\n    """Do.\n\n    >>> g("Question: Tom?")\n    """\n')) == ["Tom?"]
    assert list(in_page('```console\ncactus generate "Tom has 4. How many?"\n```\n')) == ["Tom has 4. How many?"]
    assert {each["question"] for each in form(FormLimits(), models=False)["examples"]} == QUESTIONS


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.question[:20])
def test_the_bundled_pair_solves_the_examples(example: Example) -> None:
    pair = load_pair()
    texts = [generate(pair, example.prompt, num_speculative_tokens=6, seed=seed).text for seed in range(10)]
    assert sum(extract_answer(text) == example.answer for text in texts) >= 8
