"""Count what somebody would have to read: files and lines by folder, and what a response executes and loads.

python scripts/weigh.py            this checkout
python scripts/weigh.py FOLDER     another one
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from results import parse

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("code", "docstrings", "comments", "imports", "blank")
RUN = """
import sys
from pathlib import Path
import cactus_decoding
from cactus_decoding import generate, load_pair
from cactus_decoding.zoo.word_problems import EXAMPLES
root = Path(cactus_decoding.__file__).parent
def own():
    paths = {Path(each.__file__) for each in [*sys.modules.values()] if getattr(each, "__file__", None)}
    return sorted(path for path in paths if path.is_relative_to(root))
loaded = own()
pair = load_pair()
generate(pair, EXAMPLES[0].prompt, seed=0, max_new_tokens=16)
found = set()
def note(frame, event, _):
    path = Path(frame.f_code.co_filename)
    if event == "call" and path.is_relative_to(root):
        found.add(path)
sys.setprofile(note)
generate(pair, EXAMPLES[0].prompt, seed=0, max_new_tokens=16)
sys.setprofile(None)
lines = lambda paths: sum(len(path.read_text().splitlines()) for path in paths)
print(f"`from cactus_decoding import generate` loads {len(loaded)} files of {lines(loaded)} lines")
print(f"a response of the bundled pair has loaded {len(own())} files of {lines(own())} lines")
print(f"and executes functions of {len(found)} files of {lines(found)} lines")
"""


def kinds_of(path: Path) -> Counter[str]:
    """Return how many lines of a file are of each kind."""
    text = path.read_text()
    stripped = (line.strip() for line in text.splitlines())
    kind = {
        number: "comments" if line.startswith("#") else "code" if line else "blank"
        for number, line in enumerate(stripped, 1)
    }
    for node in ast.walk(ast.parse(text)):
        imports = isinstance(node, (ast.Import, ast.ImportFrom))
        said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if imports or said:
            lines = range(node.lineno, (node.end_lineno or 0) + 1)
            kind |= dict.fromkeys(lines, "imports" if imports else "docstrings")
    return Counter(kind.values())


def folders(root: Path) -> Iterator[tuple[str, list[Path]]]:
    """Yield the folders that are counted, and the files in each."""
    package = root / "src" / "cactus_decoding"

    def rooms(folder: Path) -> list[Path]:
        return sorted(each for each in folder.iterdir() if each.is_dir() and each.name != "__pycache__")

    for top in rooms(package):
        for each in (top, *(rooms(top) if top.name in ("core", "lab", "engines") else ())):
            yield f"src: {each.relative_to(package)}", sorted(each.rglob("*.py"))
    yield "src: all", sorted(package.rglob("*.py"))
    for name in ("packages", "tests", "studies", "benchmarks", "scripts", "factory"):
        yield name, sorted((root / name).rglob("*.py"))


def main() -> None:
    root = parse(__doc__, root=(ROOT, {"nargs": "?", "positional": True, "default": ROOT})).root.resolve()
    print(f"{'folder':<28}{'files':>7}{'lines':>8}" + "".join(f"{kind:>12}" for kind in KINDS))
    for name, paths in folders(root):
        counts = sum((kinds_of(path) for path in paths), Counter[str]())
        row = "".join(f"{counts[kind]:>12}" for kind in KINDS)
        print(f"{name:<28}{len(paths):>7}{sum(counts.values()):>8}{row}")
    print(flush=True)
    subprocess.run([sys.executable, "-c", RUN], check=True, env={"PYTHONPATH": str(root / "src"), "PATH": ""})


if __name__ == "__main__":
    main()
