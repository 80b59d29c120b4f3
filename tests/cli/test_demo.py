"""`cactus demo`: one table, and texts that depend on the seed only."""

from __future__ import annotations

import json


def test_demo_ends_with_one_table_of_three_rows(run):
    code, out, err = run("demo", "--problems", "2", "--seed", "1")
    assert code == 0
    for name in ("plain sampling", "lossless speculation", "Cactus, delta=0.5"):
        assert len([line for line in out.splitlines() if line.startswith(f" {name}") and "/2 " in line]) == 1
    assert out.startswith("Question: ")
    assert "\x1b" not in out + err
    assert "Answering: 6/6" in err


def test_demo_texts_depend_on_the_seed_only(run):
    arguments = ("demo", "--problems", "1", "--json", "--delta", "0.1", "--delta", "2")
    first, again = (json.loads(run(*arguments)[1]) for _ in range(2))
    assert [row["texts"] for row in first["rows"]] == [row["texts"] for row in again["rows"]]
    assert [row["rule"] for row in first["rows"]] == ["lossless", "lossless", "cactus:delta=0.1", "cactus:delta=2.0"]
    assert first["arguments"]["seed"] == 0
    other = json.loads(run(*arguments, "--seed", "1")[1])
    assert [row["texts"] for row in first["rows"]] != [row["texts"] for row in other["rows"]]
