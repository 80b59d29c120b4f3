"""What measures goodput: what it makes of what it measured. The rest needs vLLM."""

from __future__ import annotations

import subprocess
import sys

from support.scripts import ROOT


def ran(code: str) -> str:
    """Return what code prints that may import the study."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def test_the_table_of_goodput() -> None:
    out = ran("""
from studies.serving.goodput import rates_and_ways, ways_of
ways = ways_of("clamped:width=2.0", [2, 4], 4)
runs = [{"way": way.name, "rate": rate, "round": number, "goodput": rate * (1 + number / 10), "e2el_ms": 900.0,
         "e2el_p95_ms": 2000.0} for way in ways[1:3] for rate in (1.0, 2.0) for number in range(8)]
print([way.name for way in ways], ways[2].asked)
result = {"ways": [{"name": way.name} for way in ways[1:3]], "runs": runs, "limit_ms": 1e6, "max_batch": 8}
result["seconds_per_answer"] = {"lossless ×4": {"1": 0.5}}
print(rates_and_ways(result, {"lossless ×4": [10]}))
""")
    assert "['lossless ×2', 'lossless ×4', 'clamped:width=2.0 ×4'] {'acceptance_rule': 'clamped:width=2.0'}" in out
    assert "complete within 1000 s" in out
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.splitlines() if line.startswith("| ")]
    assert [line[0] for line in lines] == ["offered per second", "1", "1", "2", "2"]
    lossless, relaxed = lines[1:3]
    assert lossless[2].startswith("1.35 (1.1")
    assert lossless[3] == "1.00", "the plan: everybody is served in time"
    assert 0.5 <= float(lossless[5]) < float(lossless[7])
    assert relaxed[3::2] == ["–"] * 3
