"""Throughput by rule and draft length: what is measured, what is continued, and what is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.scripts import ROOT, benchmark, run_benchmark

draft_lengths = benchmark("draft_lengths")
SECONDS = {
    "plain": 6.0,
    "lossless|3": 3.0,
    "lossless|7": 4.0,
    "Cactus 1|3": 3.0,
    "Cactus 1|7": 2.0,
    "lossless|auto": 1.0,
}


def answers(count: int) -> dict:
    """Return answers of six tokens, which take longer and longer, for all cells alike."""
    return {
        str(i): {
            name: {"tokens": 6, "seconds": seconds * (1 + i), "steps": 2, "others": 0.0}
            for name, seconds in SECONDS.items()
        }
        for i in range(count)
    }


def test_a_rule_is_compared_at_its_own_best_number_of_proposals() -> None:
    found = draft_lengths.summary(answers(8))
    assert found["cells"]["plain"] == {
        "tokens_per_second": 0.23,
        "over_plain": [1.0, None, None],
        "tokens_per_step": 3.0,
    }
    assert found["cells"]["Cactus 1|7"]["over_plain"][0] == 3.0
    assert {rule: each["cell"] for rule, each in found["best"].items()} == {
        "lossless": "lossless|3",  # `auto` is no number
        "Cactus 1": "Cactus 1|7",
    }
    assert found["best"]["Cactus 1"]["over_lossless_at_its_best"][0] == 1.5


def test_an_interval_needs_six_prompts_and_holds_the_median() -> None:
    uneven = answers(9)
    for i, row in uneven.items():
        row["lossless|3"]["seconds"] *= 1 + 0.1 * int(i)
    value, low, high = draft_lengths.summary(uneven)["cells"]["lossless|3"]["over_plain"]
    assert low < value < high
    assert draft_lengths.summary({i: uneven[i] for i in "01234"})["cells"]["lossless|3"]["over_plain"][1:] == [
        None,
        None,
    ]


@pytest.mark.slow
def test_a_run_is_continued_without_measuring_anything_again(tmp_path: Path) -> None:
    path = tmp_path / "twins.json"
    small = ["twins", "--shapes", "small", "tiny", "--threads", 1, "--proposals", 2, "--rules", "lossless", "Cactus 1"]
    small += ["--others", "generate", "assisted|2", "lossless|auto", "--tokens", 6, "--output", path]
    assert run_benchmark("draft_lengths.py", *small, "--prompts", 3).returncode == 0
    whole = json.loads(path.read_text())
    part = whole | {"answers": {i: whole["answers"][i] for i in "02"}}
    path.write_text(json.dumps(part))
    assert run_benchmark("draft_lengths.py", *small, "--prompts", 3).returncode == 0
    stored = json.loads(path.read_text())
    assert sorted(stored["answers"]) == ["0", "1", "2"]
    assert part["answers"].items() <= stored["answers"].items()
    assert list(stored["answers"]["0"]) == [
        *("plain", "generate", "assisted|2", "lossless|auto", "lossless|2", "Cactus 1|2")
    ]
    assert stored["summary"]["prompts"] == 3
    assert stored["provenance"]["arguments"]["dtype"] == "float32"
    other = run_benchmark("draft_lengths.py", *small, "--prompts", 4)
    assert other.returncode == 2
    assert "but this run is of" in other.stderr


def test_the_pictures_are_those_of_the_result_files(tmp_path: Path) -> None:
    assert run_benchmark("draw_draft_lengths.py", "--output", tmp_path / "draft_lengths.svg").returncode == 0
    for name in ("draft_lengths.svg", "draft_lengths_real_pair.svg"):
        assert (tmp_path / name).read_text() == (ROOT / "docs/images" / name).read_text()
