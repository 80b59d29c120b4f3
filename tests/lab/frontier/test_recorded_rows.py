"""Files of rows say what is wrong with them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.recorded_rows import some_rows

from cactus_decoding.lab.frontier.frontier import Frontier
from cactus_decoding.lab.frontier.recorded_rows import read_rows


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
