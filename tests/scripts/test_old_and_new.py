"""The comparison of two trees: the same requests each time, and no difference in their answers goes unseen."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import pytest

from benchmarks.old_and_new import OUTCOMES, ROOT, Kept, compare, run, table
from benchmarks.old_and_new_requests import BY_TIME, PARTS, requests_of

TOLERANCE = 1e-9
TOLD = {"token_ids": [1, 2, 3], "finish_reason": "stop", "steps": 2, "nats": 0.25, "budget_left": None}
ANSWER = {"answer": [{"answer": TOLD}, {"refused": "ValueError", "said": "rule must be ..."}]}


def compared(old: dict, new: dict) -> dict[str, int]:
    """Return the outcomes that were counted, of one request."""
    found = compare([{"prompt": "Hi"}], [old], [new], TOLERANCE, 5)
    assert table({"generate": found}).splitlines()[1].split()[:2] == ["generate", "1"]
    return {name: found[name] for name in (*OUTCOMES, "worded otherwise", "of another type") if found[name]}


def changed(**changes: object) -> dict:
    """Return an answer like `ANSWER` but for some values."""
    other = copy.deepcopy(ANSWER)
    for name, value in changes.items():
        inner = other["answer"][0]["answer"] if name in TOLD else other["answer"][1]
        inner[name] = value
    return other


@pytest.mark.parametrize("part", PARTS)
def test_requests_are_the_same_each_time_and_go_by_no_time(part: str) -> None:
    some = requests_of(part, 40, 3, 8)
    assert some == requests_of(part, 40, 3, 8) == json.loads(json.dumps(some))
    assert part == "arguments" or some != requests_of(part, 40, 4, 8)
    lengths = {str(value) for value in found(some, "num_speculative_tokens")}
    lengths |= {f"tree:{value}" for value in found(some, "tree")}
    assert not lengths & {*BY_TIME}


def found(value: object, name: str) -> list[object]:
    """Return all values of a name, however deep."""
    if isinstance(value, list):
        return [each for one in value for each in found(one, name)]
    if not isinstance(value, dict):
        return []
    own = [value[name]] if name in value else []
    return own + [each for one in value.values() for each in found(one, name)]


def test_equal_answers_are_equal_and_wording_is_counted_by_itself() -> None:
    assert compared(ANSWER, ANSWER) == {"equal": 1, "refused by both": 1}
    assert compared(ANSWER, changed(nats=0.25 + 1e-12)) == {"equal": 1, "refused by both": 1}
    assert compared(ANSWER, changed(said="else")) == {"equal": 1, "refused by both": 1, "worded otherwise": 1}
    assert compared(ANSWER, changed(refused="TypeError")) == {"equal": 1, "refused by both": 1, "of another type": 1}


@pytest.mark.parametrize(
    "changes",
    [{"token_ids": [1, 2, 4]}, {"token_ids": [1, 2]}, {"steps": 3}, {"nats": 0.2501}, {"finish_reason": "length"},
     {"budget_left": 0.0}, {"steps": True}],
    ids=str,
)  # fmt: skip
def test_each_change_of_an_answer_is_a_difference(changes: dict) -> None:
    assert compared(ANSWER, changed(**changes)) == {"different": 1, "refused by both": 1}


def test_who_refuses_matters_and_by_which_status() -> None:
    refused, failed = {"refused": "status 400", "said": ""}, {"failed": "KeyError", "said": ""}
    assert compared(refused, {"answer": {}}) == {"refused by the old": 1}
    assert compared({"answer": {}}, refused) == {"refused by the new": 1}
    assert compared(refused, {"refused": "status 500", "said": ""}) == {"different": 1}
    assert compared(refused, failed) == {"different": 1}
    assert compared(failed, {"failed": "IndexError", "said": ""}) == {"different": 1}
    assert compared(failed, failed) == {"failed in both": 1}


def test_kept_answers_are_those_of_the_same_requests(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    Kept(file).put("key", [{"seed": 1}], [ANSWER])
    assert Kept(file).get("key", [{"seed": 1}]) == [ANSWER]
    assert Kept(file).get("key", [{"seed": 2}]) is None
    assert Kept(file).get("other", [{"seed": 1}]) is None


@pytest.mark.slow
def test_a_tree_answers_itself_equally_and_another_seed_is_another_answer(tmp_path: Path) -> None:
    models = tmp_path / "models"
    run("assets", ROOT, models, sys.executable)
    for part in ("generate", "gguf"):
        asked = requests_of(part, 6, 5, 12)
        first, again = (run(part, ROOT, models, sys.executable, asked) for _ in range(2))
        same = compare(asked, first, again, TOLERANCE, 5)
        assert same["differences"] == same["wordings"] == []
        assert same["equal"] > 3
        other = json.loads(json.dumps(asked).replace('"seed": ', '"seed": 7'))
        seeded = run(part, ROOT, models, sys.executable, other)
        assert compare(asked, first, seeded, TOLERANCE, 5)["different"] > 0
