"""Recorded rows: files that say what is wrong with them, and long rows whose unlikely ends are put together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.recorded_rows import frontier_file, some_rows
from support.tiny_models import tiny_llama

from cactus_decoding import Request, SamplingParams, load_pair
from cactus_decoding.core.audit import audit
from cactus_decoding.core.drafting.lookup import NgramDrafter
from cactus_decoding.core.pair import Pair
from cactus_decoding.lab.frontier.frontier import Frontier, read_frontier
from cactus_decoding.lab.frontier.recorded_rows import (
    MERGED_TAIL,
    join,
    pack_rows,
    pack_shortened,
    read_rows,
    shortened,
)
from cactus_decoding.lab.frontier.recording import record_rows


def test_files_of_rows_say_what_is_wrong_with_them(tmp_path):
    path = tmp_path / "rows.safetensors"
    with pytest.raises(FileNotFoundError):
        read_rows(path)
    path.write_text("not rows")
    with pytest.raises(ValueError, match=r"rows\.safetensors: this is not a file of rows"):
        read_rows(path)
    some_rows().save(path)
    nothing, tensors = {"x": torch.zeros(1)}, load_file(path)
    about = {"schema": 1, "vocabulary": 7, "settings": {}, "provenance": {}}
    for held, said_of_them, message in (
        (nothing, None, "this is not a file of rows"),
        (nothing, [1], "this is not a file of rows"),
        (nothing, {"schema": 9}, "schema is 9, but this version reads schema 1"),
        ({name: t for name, t in tensors.items() if name != "step"}, about, "lacks 'step'"),
        (tensors | {"step": tensors["step"][1:].clone()}, about, "parts of different lengths"),
    ):
        save_file(held, path, said_of_them and {"cactus_rows": json.dumps(said_of_them)})
        with pytest.raises(ValueError, match=message):
            read_rows(path)


def test_rows_survive_a_file(tmp_path):
    rows, path = some_rows(), tmp_path / "rows.safetensors"
    rows.save(path)
    again, count = read_rows(path), len(rows.target)
    assert (again.positions, again.problems, again.settings) == (rows.positions, rows.problems, rows.settings)
    assert torch.equal(again.target.dense(0, count), rows.target.dense(0, count))
    assert torch.equal(again.draft.dense(0, count), rows.draft.dense(0, count))
    assert Frontier(again).measure("lossless").acceptance == Frontier(rows).measure("lossless").acceptance
    (tmp_path / "other").touch()  # whoever may read other files may read rows
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_stores_join_whatever_their_form():
    dense, sparse = torch.full((2, 8), 1 / 8), torch.eye(8)
    packed = [pack_rows([dense], 8), pack_rows([sparse], 8)]
    assert [each.sparse for each in packed] == [False, True]
    for parts in ([0, 0], [1, 1], [0, 1], [1, 0, 1]):
        joined = join([packed[i] for i in parts], 8)
        expected = torch.cat([(dense, sparse)[i] for i in parts])
        assert torch.equal(joined.dense(0, len(joined)), expected)
        assert torch.equal(joined.dense(1, 3), expected[1:3])
        assert torch.equal(joined.masses(torch.tensor([1, 7])), expected[:, [1, 7]].sum(-1).double())


def test_result_files_say_what_is_wrong_with_them(tmp_path):
    path = frontier_file(tmp_path / "frontier.json")
    result = json.loads(path.read_text())
    *first, third = result["points"][:3]
    assert read_frontier(path) == result
    before = {name: value for name, value in result.items() if name != "rejections"}  # no file had them once
    path.write_text(json.dumps(before))
    assert read_frontier(path) == before
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
        (json.dumps(result | {"rejections": []}), "its rejections are not those of a frontier"),
        (json.dumps(result | {"rejections": result["rejections"] | {"rejected": [0.1]}}), "its rejections are not"),
        (json.dumps(result | {"rejections": result["rejections"] | {"kinds": [{"kind": "words"}]}}), "its rejections"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message) as raised:
            read_frontier(path)
        assert "frontier.json" in str(raised.value)


VOCABULARY = 20_000
RULES = ("lossless", "clamped:width=2.0", "cactus:delta=1.0", "ensemble:weight=0.3", "lenience:lenience=0.5")


def rows(count: int, sharpness: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows as language models have them: a few likely tokens, and a long tail in which both differ."""
    generator = torch.Generator().manual_seed(0)
    target = sharpness * torch.randn(count, VOCABULARY, generator=generator)
    draft = target + torch.randn(count, VOCABULARY, generator=generator)
    return target.softmax(-1), draft.softmax(-1)


@pytest.mark.parametrize("tail", [1e-2, MERGED_TAIL, 1e-4])
def test_what_rules_accept_and_cost_changes_by_less_than_the_tail(tail: float) -> None:
    target, draft = rows(4)
    pairs = [shortened(q, p, drafted=7, tail=tail) for q, p in zip(target, draft, strict=True)]
    packed = [each.dense(0, 4) for each in pack_shortened(pairs, VOCABULARY)]
    assert all(len(pair.token_ids) < VOCABULARY for pair in pairs)
    for rule in RULES:
        whole, kept = audit(rule, target, draft), audit(rule, *packed)
        most = 1e-6 if rule == "lossless" else tail
        assert (whole.acceptance - kept.acceptance).abs().max() <= most, rule
        assert (whole.kl - kept.kl).abs().max() <= tail, rule


def test_putting_all_unlikely_tokens_together_would_accept_too_much() -> None:
    # why they are told apart by their ratio: one token for all of a tail of 0.3 hides where the models disagree
    target, draft = rows(4)
    pairs = [shortened(q, p, drafted=7, tail=0.3) for q, p in zip(target, draft, strict=True)]
    one = [each.dense(0, 4) for each in pack_shortened(pairs, VOCABULARY)]
    for row, place in ((row, place) for row in range(4) for place in range(2)):
        tail = torch.maximum(target, draft)[row] < 1e-3
        rest = one[place][row, tail].sum()
        one[place][row, tail] = 0.0
        one[place][row, 0] += rest
    exact = audit("lossless", target, draft).acceptance
    packed = [each.dense(0, 4) for each in pack_shortened(pairs, VOCABULARY)]
    assert (audit("lossless", *packed).acceptance - exact).abs().max() < 1e-6
    assert (audit("lossless", *one).acceptance - exact).min() > 1e-3


def test_kept_tokens_stay_what_they_are_and_the_rest_is_small() -> None:
    target, draft = rows(1)
    unlikely = int(torch.maximum(target, draft)[0].argmin())
    ids, q, p = shortened(target[0], draft[0], drafted=unlikely)
    assert unlikely in ids
    assert ids.equal(ids.unique())
    same = (q.float() == target[0, ids]) & (p.float() == draft[0, ids])
    assert int((~same).sum()) <= 65
    assert max(float(q[~same].sum()), float(p[~same].sum())) <= MERGED_TAIL
    for kept, row in ((q, target), (p, draft)):
        assert float(kept.sum()) == pytest.approx(float(row.sum(dtype=torch.float64)), abs=1e-12)


def test_rows_without_a_tail_are_kept_whole() -> None:
    row = torch.tensor([0.25, 0.0, 0.75, 0.0])
    found = shortened(row, row, drafted=0)
    assert found.target.tolist() == [0.25, 0.75]
    even = torch.full((4,), 0.25)
    assert shortened(even, even, drafted=0).token_ids.tolist() == [0, 1, 2, 3]


def test_recorded_rows_of_a_large_vocabulary_take_less_memory(tmp_path: Path) -> None:
    pair = load_pair()
    target = type(pair.target)(tiny_llama(0, 6007, positions=256, sharpness=60.0))
    tiny = Pair(target, NgramDrafter(), pair.tokenizer)
    request = Request(num_speculative_tokens=3, max_new_tokens=40, seed=0)
    kept = record_rows(tiny, ["1 2 3 1 2 3 1 2"], request, positions=20)
    assert kept.target.sparse
    assert kept.target.probs.dtype == torch.float32  # of a model in float64
    kept.save(tmp_path / "rows.safetensors")
    assert read_rows(tmp_path / "rows.safetensors").target.dense(0, 1).equal(kept.target.dense(0, 1))
    sums = kept.target.dense(0, len(kept.target)).sum(-1, dtype=torch.float64)
    assert sums.allclose(torch.ones_like(sums), atol=1e-5)
    top = request.replace(sampling=SamplingParams(top_k=5))
    cut = record_rows(tiny, ["1 2 3 1 2 3 1 2"], top, positions=20)
    assert int(cut.target.counts.max()) <= 5  # exact: what is truncated has no tail
