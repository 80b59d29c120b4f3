"""Many rows in little memory: joined whatever their form."""

from __future__ import annotations

import torch

from cactus_decoding.lab.frontier.recorded_rows import join, pack


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
