"""Shapes of trees as they are spelled, and what is said of texts that spell none."""

from __future__ import annotations

import pytest

from cactus_decoding import BestFirstTree, DraftLength, Request, StaticTree
from cactus_decoding.core.drafting.registry import as_tree

SPELLINGS = {
    StaticTree: ("static=4.2.2.1", "static=3", "static=2.2,drawn=0", "static=2.1,drawn=2"),
    BestFirstTree: ("best_first", "best_first,nodes=8", "best_first,nodes=8,depth=3,drawn=0"),
}


@pytest.mark.parametrize("kind", SPELLINGS)
def test_a_shape_is_spelled_both_ways(kind: type[DraftLength]) -> None:
    for spelling in SPELLINGS[kind]:
        shape = as_tree(spelling)
        assert type(shape) is kind
        assert isinstance(shape, DraftLength)
        assert str(shape) == spelling
        assert as_tree(f" {spelling.replace(',', ' , ').replace('=', ' = ')} ") == shape


def test_a_shape_of_ones_own_needs_no_spelling() -> None:
    class Pairs(BestFirstTree):
        name = ""

        def __repr__(self) -> str:
            return "two of each"

    assert str(Pairs()) == "two of each"
    assert Request(tree=Pairs()).as_dict()["tree"] == "two of each"


def test_what_shapes_say_of_themselves() -> None:
    assert StaticTree("2.2.2").is_even
    assert not any(as_tree(other).is_even for other in ("static=2.2.1", "best_first"))
    shape = as_tree("best_first,nodes=9,depth=5")
    assert (shape.max_draft_tokens, shape.max_nodes, shape.max_drawn) == (5, 9, 1)


@pytest.mark.parametrize(
    ("spelling", "wrong"),
    [
        ("", "unknown tree ''; known are static=4.2.2.1 and best_first"),
        ("static", "unknown tree 'static'; known are static=4.2.2.1"),
        ("lookup=2", "lacks static"),
        ("static=4.0", "static must be numbers from 1 with dots between such as '4.2.2.1', but is '4.0'"),
        ("static=4.", "but is '4.'"),
        ("static=a", "but is 'a'"),
        ("static=2.2,drawn=-1", "drawn must be at least 0, but is -1"),
        ("static=32.32", "at most 1024 tokens, but static=32.32 has 1056"),
        ("static=31.31,lookup=64", "at most 1024 tokens, but static=31.31,lookup=64 has 2017"),
        ("4.2", "unknown tree '4.2'"),
        ("best_frist,nodes=3", "did you mean 'best_first'"),
        ("best_first=3", "unknown tree 'best_first=3'"),
        ("best_first,nodes=0", "nodes must be between 1 and 1024, but is 0"),
        ("best_first,nodes=a", "nodes must be an integer, but is 'a'"),
        ("best_first,node=3", "unknown parameter 'node' in 'best_first:node=3'"),
        ("best_first,drawn=2", "drawn must be between 0 and 1, but is 2"),
        ("best_first,drawn=0,width=0", "width and drawn must not both be 0"),
        ("best_first,acceptance=1", r"acceptance must be in \(0, 1\), but is 1"),
    ],
)
def test_what_is_no_shape_is_refused(spelling: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        as_tree(spelling)
