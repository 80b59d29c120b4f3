"""Files of tensors with a header."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from cactus_decoding.core.files.writing import Format, read_tensors, write_tensors

FORM = Format("sums", schema=2, described="of sums")


def test_tensors_and_what_is_told_about_them_come_back(tmp_path):
    path, tensor = tmp_path / "a", torch.arange(6.0).view(2, 3).T
    write_tensors(path, FORM, {"x": tensor}, {"of": [1, 2]})
    tensors, about = read_tensors(path, FORM)
    assert torch.equal(tensors["x"], tensor)
    assert about == {"schema": 2, "of": [1, 2]}


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({}, "mine: this is not a file of sums"),
        ({"others": "{}"}, "mine: this is not a file of sums"),
        ({"sums": "{"}, "mine: this is not a file of sums"),
        ({"sums": "[2]"}, "mine: this is not a file of sums"),
        ({"sums": "{}"}, "mine: schema is None, but this version reads schema 2"),
        ({"sums": '{"schema": 1}'}, "mine: schema is 1, but this version reads schema 2"),
    ],
)
def test_another_header_is_refused(tmp_path, header, said):
    save_file({"x": torch.zeros(1)}, tmp_path / "a", header)
    with pytest.raises(ValueError, match=said):
        read_tensors(tmp_path / "a", FORM, "mine")
