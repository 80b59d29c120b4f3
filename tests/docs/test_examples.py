"""Whatever pages, help texts, docstrings and examples put to the bundled pair is a problem that it solves."""

from __future__ import annotations

import ast
import doctest
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.code_blocks import COMMANDS, ROOT, blocks_of, commands_of
from support.tables import all_of

from cactus_decoding import generate, load_pair
from cactus_decoding.lab.playground.form import FormLimits, form
from cactus_decoding.zoo.word_problems import EXAMPLES, Example, extract_answer

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
