"""Files of rows say what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.recorded_rows import some_rows

from cactus_decoding.evaluation.frontier.frontier import Frontier
from cactus_decoding.evaluation.frontier.recorded_rows import read_rows


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


def test_rows_of_the_version_before_are_read(tmp_path):
    rows = read_rows(Path(__file__).parents[2] / "data" / "version_0_1" / "rows.safetensors")
    assert rows.positions == 12
    assert rows.target.sparse
    again = tmp_path / "again.safetensors"
    rows.save(again)
    count = len(rows.target)
    assert torch.equal(read_rows(again).target.dense(0, count), rows.target.dense(0, count))
    assert Frontier(rows).measure("lossless").acceptance.value > 0.9


def test_whoever_may_read_other_files_may_read_rows(tmp_path):
    (tmp_path / "other").touch()
    some_rows().save(tmp_path / "rows.safetensors")
    assert (tmp_path / "rows.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
