"""Result files of the frontier say what is wrong with them, and are drawn the same every time."""

from __future__ import annotations

import json

import pytest
from support.recorded_rows import some_rows

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json
from cactus_decoding.lab.frontier.frontier import as_result, frontier, read_frontier
from cactus_decoding.lab.frontier.relaxations import FAMILIES


def small_result() -> dict:
    rows = some_rows()
    return as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, provenance({"seed": 0}))


def test_result_files_say_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "frontier.json"
    result = small_result()
    *first, third = result["points"][:3]
    path.write_text(as_json(result))
    assert read_frontier(path) == json.loads(json.dumps(result))
    for text, message in (
        ('{"kind":\n oops', "line 2: this is not JSON"),
        ("[1]", "this is not a result of cactus frontier"),
        (json.dumps(result | {"schema": 7}), "schema is 7"),
        (json.dumps({"kind": "frontier", "schema": 1}), "lacks settings, visited"),
        (json.dumps(result | {"points": [*result["points"], {"rule": 1}]}), "is not a point"),
        (json.dumps(result | {"points": [*first, third | {"kl": [[], 0, 1]}]}), "point 2 is not a point"),
        (json.dumps(result | {"points": [*first, third | {"tv": ["x", 0, 1]}]}), "point 2 is not a point"),
        (json.dumps(result | {"points": [*first, third | {"protect": 3}]}), "point 2 is not a point"),
        (json.dumps(result | {"points": result["points"][2:]}), "the first two points must be"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message) as raised:
            read_frontier(path)
        assert "frontier.json" in str(raised.value)
