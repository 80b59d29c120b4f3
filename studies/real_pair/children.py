"""How often one of several children of a tree's node is kept at a real pair's positions.

python -m studies.real_pair.run --answers FOLDER --target T.gguf --rows ROWS.safetensors
python -m studies.real_pair.children ROWS.safetensors
python -m studies.real_pair.run --only-render
"""

from __future__ import annotations

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, plain, write_atomically
from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.recorded_rows import read_rows
from studies.rules.frontier import thinned

RESULT = Path(__file__).with_name("results") / "children.json"
RULES, CHILDREN = ("lossless", "clamped:width=2.0", "cactus:delta=1.0"), 8


def main() -> None:
    """Measure and write."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--positions", type=int, default=1500, help="about so many, every n-th")
    parser.add_argument("--results", type=Path, default=RESULT)
    given = parser.parse_args()
    rows = thinned(read_rows(given.rows), given.positions)
    points = [Frontier(rows).measure(rule, max_children=CHILDREN) for rule in RULES]
    found = {
        point.rule: {"one drawn": plain(point.kept_by_children), "fixed": plain(point.kept_by_fixed_children)}
        for point in points
    }
    about = provenance({"study": "real_pair.children", "positions": given.positions})
    write_atomically(given.results, as_json({"positions": rows.positions, "rules": found, "provenance": about}) + "\n")


if __name__ == "__main__":
    main()
