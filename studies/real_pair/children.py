"""How often one of several children of a tree's node is kept at a real pair's positions.

python -m studies.real_pair.run --answers FOLDER --target T.gguf --rows ROWS.safetensors
python -m studies.real_pair.children ROWS.safetensors
python -m studies.real_pair.run --only-render
"""

from __future__ import annotations

from pathlib import Path

from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.recorded_rows import read_rows
from scripts.results import parse, write
from studies.rules.frontier import thinned

RESULT = Path(__file__).with_name("results") / "children.json"
RULES, CHILDREN = ("lossless", "clamped:width=2.0", "cactus:delta=1.0"), 8

if __name__ == "__main__":
    given = parse(__doc__, rows=Path, positions=(1500, "about so many, every n-th"), results=RESULT)
    rows = thinned(read_rows(given.rows), given.positions)
    points = [Frontier(rows).measure(rule, max_children=CHILDREN) for rule in RULES]
    found = {each.rule: {"one drawn": each.kept_by_children, "fixed": each.kept_by_fixed_children} for each in points}
    about = {"study": "real_pair.children", "positions": given.positions}
    write(given.results, {"positions": rows.positions, "rules": found}, about)
