"""The code blocks of a Markdown page, and running them in order as a reader would.

An HTML comment before a block can say more:

    <!-- run with: eval --problems 2; frontier --positions 30 -->   makes its commands small enough for a test
    <!-- output -->                                                 what the block before it prints
    <!-- not run: REASON -->                                        it needs what tests cannot have
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n+)?^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
COMMANDS = ("bash", "console")
RUN, SHOWN = ("python", *COMMANDS), ("text", "json", "markdown")
Command = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: what stands after the fence.
        text: what it holds, without its indentation.
        line: where it begins on the page.
        mark: the comment before it.
    """

    language: str
    text: str
    line: int
    mark: str = ""

    @property
    def reason_not_to_run(self) -> str | None:
        """Why tests cannot run it; None where they do, or where there is nothing to run."""
        return self.mark.partition(":")[2].strip() if self.mark.startswith("not run:") else None

    @property
    def small(self) -> dict[str, list[str]]:
        """Further options by command."""
        if not self.mark.startswith("run with:"):
            return {}
        given = [shlex.split(part) for part in self.mark.partition(":")[2].split(";")]
        return {name: options for name, *options in given}


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found = []
    for match in BLOCK.finditer(page):
        indent = len(match["indent"])
        text = "".join(line[indent:] for line in match["text"].splitlines(keepends=True))
        line = page.count("\n", 0, match.start("language")) + 1
        found.append(Block(match["language"], text, line, match["mark"] or ""))
    return found


def commands_of(text: str) -> Iterator[list[str]]:
    """Return the commands of a block as words; comments, continuation lines and quoted lines are read as bash does."""
    held = ""
    for line in text.replace("\\\n", "").splitlines():
        held = f"{held}\n{line}" if held else line
        try:
            words = shlex.split(held, comments=True)
        except ValueError:  # a quotation that goes on
            continue
        held = ""
        if words:
            yield words
    assert not held, f"this quotation does not end: {held}"


def run_page(path: Path, run: Command, printed: Callable[[], str]) -> None:
    """Run the blocks of a page one after another: Python in one namespace, commands of `cactus` in this process.

    Args:
        path: the page.
        run: calls the command line; see the fixture of that name.
        printed: returns what was printed since it was last asked.
    """
    module = sys.modules["__page__"] = ModuleType("__page__")  # where a dataclass looks its annotations up
    last = ""
    for block in blocks_of(path.read_text(encoding="utf-8")):
        where = f"{path.name}, line {block.line}"
        if block.mark == "output":
            assert block.language == "text", where
            assert _stripped(last) == _stripped(block.text), where
        elif block.language not in RUN:
            assert block.language in SHOWN, f"{where}: a block in {block.language!r} is neither run nor mere text"
        elif block.reason_not_to_run is not None:
            assert len(block.reason_not_to_run) > 10, f"{where}: say why it is not run"
        elif block.language == "python":
            printed()
            code = compile("\n" * block.line + block.text, str(path), "exec", dont_inherit=True)
            exec(code, module.__dict__)
            last = printed()
        else:
            last = "".join(_run_command(words, block, run, where) for words in commands_of(block.text))


def _run_command(words: list[str], block: Block, run: Command, where: str) -> str:
    """Run a command of `cactus`; of the set-up's commands, see that what they name is there."""
    first, rest = words[0], words[1:]
    if first in ("cactus", ".venv/bin/cactus"):
        assert rest[:1] not in (["play"], ["serve"]), f"{where}: it serves until it is stopped; mark it as not run"
        code, output, errors = run(*rest, *block.small.get(rest[0] if rest else "", []))
        assert code == 0, f"{where}: {shlex.join(words)} ended with {code}: {errors}"
        return output
    if first == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^[\w -]*\b{name}\b[\w -]*:", makefile, re.MULTILINE) for name in rest), where
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"\[(.+?)\]", words[-1])
        assert words[-1].startswith("cactus-decoding"), where
        assert set(named) <= extras.keys(), where
    elif first in ("python", ".venv/bin/python", ".venv-vllm/bin/python"):
        script = f"{rest[1].replace('.', '/')}.py" if rest[0] == "-m" else rest[0]
        assert (ROOT / script).exists(), f"{where}: there is no {script}"
        if rest[0] == "scripts/bundled_gguf.py":  # which later commands need
            from scripts import bundled_gguf

            bundled_gguf.main(rest[1:])
    else:
        raise AssertionError(f"{where}: {first!r} cannot be run here; mark the block as not run, and say why")
    return ""


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
