"""Files of rows say what is wrong with them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.recorded_rows import some_rows

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json
from cactus_decoding.lab.frontier.frontier import Frontier, as_result, frontier, read_frontier
from cactus_decoding.lab.frontier.recorded_rows import join, pack, read_rows
from cactus_decoding.lab.frontier.relaxations import FAMILIES


def test_files_of_rows_say_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "rows.safetensors"
    with pytest.raises(FileNotFoundError):
        read_rows(path)
    path.write_text("not rows")
    with pytest.raises(ValueError, match=r"rows\.safetensors: this is not a file of rows"):
        read_rows(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="this is not a file of rows"):
        read_rows(path)
    save_file({"x": torch.zeros(1)}, path, {"cactus_rows": "[1]"})
    with pytest.raises(ValueError, match="this is not a file of rows"):
        read_rows(path)
    save_file({"x": torch.zeros(1)}, path, {"cactus_rows": json.dumps({"schema": 9})})
    with pytest.raises(ValueError, match="schema is 9, but this version reads schema 1"):
        read_rows(path)
    some_rows().save(path)
    tensors = load_file(path)
    about = {"schema": 1, "vocabulary": 7, "settings": {}, "provenance": {}}
    save_file({name: t for name, t in tensors.items() if name != "step"}, path, {"cactus_rows": json.dumps(about)})
    with pytest.raises(ValueError, match="lacks 'step'"):
        read_rows(path)
    save_file(tensors | {"step": tensors["step"][1:].clone()}, path, {"cactus_rows": json.dumps(about)})
    with pytest.raises(ValueError, match="parts of different lengths"):
        read_rows(path)


def test_rows_survive_a_file(tmp_path):
    rows = some_rows()
    rows.save(tmp_path / "rows.safetensors")
    again, count = read_rows(tmp_path / "rows.safetensors"), len(rows.target)
    assert (again.positions, again.problems, again.settings) == (rows.positions, rows.problems, rows.settings)
    assert torch.equal(again.target.dense(0, count), rows.target.dense(0, count))
    assert torch.equal(again.draft.dense(0, count), rows.draft.dense(0, count))
    assert Frontier(again).measure("lossless").acceptance == Frontier(rows).measure("lossless").acceptance


def test_whoever_may_read_other_files_may_read_rows(tmp_path):
    (tmp_path / "other").touch()
    some_rows().save(tmp_path / "rows.safetensors")
    assert (tmp_path / "rows.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_stores_join_whatever_their_form():
    dense, sparse = torch.full((2, 8), 1 / 8), torch.eye(8)
    packed = [pack([dense], 8), pack([sparse], 8)]
    assert [each.sparse for each in packed] == [False, True]
    for parts in ([0, 0], [1, 1], [0, 1], [1, 0, 1]):
        joined = join([packed[i] for i in parts], 8)
        expected = torch.cat([(dense, sparse)[i] for i in parts])
        assert torch.equal(joined.dense(0, len(joined)), expected)
        assert torch.equal(joined.dense(1, 3), expected[1:3])
        assert torch.equal(joined.masses(torch.tensor([1, 7])), expected[:, [1, 7]].sum(-1).double())


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
