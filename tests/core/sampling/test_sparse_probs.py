"""One type for a row in few entries: every bit of the dense row, and the same answers about its tokens."""

from __future__ import annotations

import torch
from support.tables import all_of

from cactus_decoding.core.sampling.params import LARGE_VOCABULARY, SamplingParams
from cactus_decoding.core.sampling.rows import LazyRows, SparseProbs

SAMPLINGS = [SamplingParams(), SamplingParams(temperature=0), SamplingParams(temperature=0.6, top_p=0.9, top_k=20)]


@all_of("dtype", [torch.float32, torch.float64])
def test_kept_rows_keep_every_bit(dtype: torch.dtype) -> None:
    dense, sparse = torch.rand(50).to(dtype).softmax(-1), torch.zeros(50, dtype=dtype)
    sparse[[3, 7]] = torch.tensor([0.3, 0.7], dtype=dtype)
    for row, is_sparse in ((dense, False), (sparse, True)):
        kept = SparseProbs.keep(row)
        assert (kept.token_ids is not None) == is_sparse
        assert kept.vocabulary == 50
        assert kept.dense().dtype == dtype
        assert torch.equal(kept.dense(), row)
        assert kept.nbytes == (2 * (row.itemsize + 4) if is_sparse else 50 * row.itemsize)
    rows = torch.rand(2, 50)
    kept = SparseProbs.keep(rows[0])
    assert kept.probs.untyped_storage().nbytes() == 50 * 4  # no more than the row is held on to
    rows.zero_()
    assert kept.dense().count_nonzero() == 50  # and a copy of it


def test_a_sparse_row_knows_of_each_token_what_the_dense_one_does() -> None:
    row = torch.zeros(10)
    row[[2, 5, 6]] = torch.tensor([0.5, 0.25, 0.25])
    for probs in (
        SparseProbs.keep(row),
        SparseProbs(10, row[[2, 5, 6]], torch.tensor([2, 5, 6])),
        SparseProbs(10, row),
    ):
        assert probs.mass(torch.tensor([0, 5, 9])) == 0.25
        assert probs.mass(torch.tensor([2, 3, 6])) == 0.75
        assert probs.mass(torch.tensor([9])) == 0
        for token in range(10):
            assert probs.probability(token) == row[token]
            listing, place = probs.including(token)
            assert listing.probs[place] == row[token]
            assert torch.equal(listing.dense(), row)
            listed = torch.arange(10.0) if listing.token_ids is None else listing.token_ids.float()
            assert torch.equal(listing.restrict(torch.arange(10.0)), listed)
            assert listed[place] == token
            assert listing.draw(torch.eye(len(listed))[place], torch.tensor(0.5)) == token
        assert probs.draw(torch.full_like(probs.probs, torch.nan), torch.tensor(0.5)) == 10


@all_of("sampling", SAMPLINGS)
@all_of("vocabulary", [60, LARGE_VOCABULARY])
def test_lazy_rows_are_those_of_the_whole_block(vocabulary: int, sampling: SamplingParams) -> None:
    logits = torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    lazy = LazyRows(logits, sampling)
    for i in (2, 0):
        torch.testing.assert_close(lazy.at(i).dense(), sampling(logits)[i], rtol=0, atol=0)
    assert (lazy.at(1).token_ids is not None) == (vocabulary == LARGE_VOCABULARY and sampling.truncates)
