"""Hypothesis strategies: any rule of a class, by the limits that its knobs declare, and rows of small vocabularies."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import reject
from hypothesis import strategies as st
from torch import Tensor

from cactus_decoding.core.declared import Declared, fields_of
from cactus_decoding.core.rules import RULES, Rule
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.sampling.params import SamplingParams


def values_of(parameter: Declared, largest: float = math.inf) -> st.SearchStrategy:
    """Return what a parameter may be, by its own limits, numbers up to a largest one."""
    ge, gt, le, lt = map(parameter.limit, (Ge, Gt, Le, Lt))
    kinds = [st.none()] if parameter.optional else []
    if parameter.choices:
        kinds.append(st.sampled_from(parameter.choices))
    elif parameter.kind is int:
        most = 10**9 if le is None else int(le)
        kinds.append(st.integers(int(ge or 0), int(min(most, largest))))
    else:
        low, high = (ge if gt is None else gt), (le if lt is None else lt)
        finite = None if min(high or math.inf, largest) == math.inf else min(high or math.inf, largest)
        infinite = high is None and largest == math.inf
        kinds.append(st.floats(low, finite, allow_nan=False, allow_infinity=infinite, exclude_min=gt is not None))
        kinds.append(st.integers(math.ceil(low) + (gt == low), int(min(high or 1000, 1000, largest))))  # 1 for 1.0
    return st.one_of(kinds)


@st.composite
def rules_of(draw: st.DrawFn, name: str, largest: float = math.inf) -> Rule:
    """Return a rule of a class, with any values that go together."""
    given = {each.name: draw(values_of(each, largest)) for each in fields_of(RULES[name])}
    try:
        rule = RULES[name](**given)
    except ValueError:
        reject()  # each is allowed by itself
    if isinstance(rule, GreedyRule) and rule.bind_position(1, 1.0) is not rule:
        reject()  # rows alone do not say what judges
    return rule


@st.composite
def pairs_of_rows(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Return a target's and a draft's row, ``[1, vocabulary]`` in float64, tokens of probability 0 among them."""
    vocabulary = draw(st.integers(1, 5))
    weights = st.lists(st.sampled_from([0, 1, 2, 3, 50, 10_000]), min_size=vocabulary, max_size=vocabulary).filter(any)
    target, draft = (torch.tensor([draw(weights)], dtype=torch.float64) for _ in range(2))
    return target / target.sum(), draft / draft.sum()


TRUNCATIONS = (
    *(SamplingParams(top_k=count) for count in (1, 2, 3)),
    *(SamplingParams(top_p=mass) for mass in (0.3, 0.8, 0.95)),
    *(SamplingParams(min_p=share) for share in (1e-4, 0.02, 0.3)),
    *(SamplingParams(temperature=temperature) for temperature in (0, 0.4, 1.5)),
)
_WEIGHTS = (0.0, 1e-310, 1e-300, 1e-40, 1e-12, 1e-9, 1.9e-4, 0.01, 0.1, 0.28, 0.43, 1.0, 2.0)


class Beside(NamedTuple):
    """A target's and a draft's row, ``[vocabulary]``, and the tokens that are proposed in any case, ``[tokens]``."""

    target: Tensor
    draft: Tensor
    fixed: Tensor


@st.composite
def rows_beside(draw: st.DrawFn) -> Beside:
    """Return rows as truncation leaves them, of subnormal and of certain tokens, much of the draft outside the target.

    They are in float32 or float64, and may have no fixed tokens, or all.
    """
    vocabulary = draw(st.integers(1, 7))
    weights = st.lists(st.sampled_from(_WEIGHTS), min_size=vocabulary, max_size=vocabulary)
    target, draft = (
        torch.tensor(draw(weights.filter(lambda row: max(row) > 1e-100)), dtype=torch.float64) for _ in range(2)
    )
    dtype = draw(st.sampled_from([torch.float64, torch.float64, torch.float32]))
    target, draft = (
        (row / row.sum() if cut is None else cut(row.log()[None])[0]).to(dtype)
        for row, cut in (
            (target, draw(st.sampled_from([None, *TRUNCATIONS]))),
            (draft, draw(st.sampled_from([None, None, None, *TRUNCATIONS]))),
        )
    )
    fixed = draw(st.lists(st.integers(0, vocabulary - 1), max_size=3, unique=True))
    return Beside(target, draft, torch.tensor(fixed, dtype=torch.long))
