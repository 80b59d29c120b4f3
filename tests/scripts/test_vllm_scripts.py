"""The script that measures goodput: what it makes of what it measured. The rest of it needs vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
sys.path.insert(0, {scripts!r})
{code}
"""


def ran(code: str) -> str:
    """Return what code prints that may import the script."""
    given = RUN.format(scripts=str(ROOT / "scripts"), code=code)
    return subprocess.run([sys.executable, "-c", given], capture_output=True, text=True, check=True).stdout


def test_the_table_of_goodput() -> None:
    out = ran("""
from vllm_goodput import table, ways_of
load = {"acceptance_rule": "clamped:width=2.0", "load_rule": [[1, 64, 1.0]]}
ways = ways_of(load, [2, 4], 4)
runs = [{"way": way.name, "rate": rate, "round": number, "goodput": rate * (1 + number / 10), "tpot_ms": 9.0 + number,
         "tpot_p99_ms": 20.0} for way in ways[1:3] for rate in (1.0, 2.0) for number in range(8)]
print([way.name for way in ways], ways[3].config == load, ways[2].asked)
print(table({"ways": [{"name": way.name} for way in ways[1:3]], "runs": runs, "ttft_ms": 500.0, "tpot_ms": 20.0}))
""")
    assert "'lossless ×2', 'lossless ×4', 'clamped:width=2.0 ×4', 'clamped:width=2.0 by load ×4'] True" in out
    assert "within 500 ms and 20 ms" in out
    lines = [line for line in out.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert len(lines) == 4
    assert lines[0].startswith("| 1 | lossless ×4 | 1.35 (1.1")
    assert lines[3].endswith("| 20.0 |")
