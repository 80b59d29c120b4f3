"""Rules that an engine's own rejection sampler can follow, rows to try them on, and that sampler's law."""

from __future__ import annotations

import torch
from torch import Tensor

from cactus_decoding.core.relaxed_logits import relax_tokens, works_as_logits
from cactus_decoding.core.rules import Rule, parse_rule
from cactus_decoding.core.rules.base import GreedyRule
from support.exact_enumeration import paired_rows
from support.rules_under_test import LOSSLESS_LIMITS
from support.rules_under_test import SPELLINGS as EVERY_SPELLING

_OURS = (
    "lossless",
    "cactus:delta=0.05",
    "cactus:delta=1",
    "cactus:delta=0.5,solver=exact",
    "cactus:delta=0.3,solver=exact,divergence=jensen_shannon",
    "cactus:delta=2,max_ratio=1.5",
    "ensemble:weight=0.4",
    "ensemble:weight=1",
    "lenience:lenience=0.5",
    "lenience:lenience=0.01",
    "clamped:width=0.8",
    "clamped:max_kl=0.05",
)
_NAMES = {parse_rule(text).name for text in _OURS}
_OTHERS = [text for text in EVERY_SPELLING if parse_rule(text).name not in _NAMES and text not in LOSSLESS_LIMITS]
_GREEDY = [text for text in _OTHERS if isinstance(parse_rule(text), GreedyRule)]
SPELLINGS = (*_OURS, *(text for text in _OTHERS if text not in _GREEDY and works_as_logits(parse_rule(text))))
GREEDY_SPELLINGS = (*_GREEDY, "relaxed_greedy:margin=0.4,per=remaining", "mars:ratio=0.6,logits=raw")
ROWS = [
    (t.double(), d.double() / d.double().sum()) for ts, ds in paired_rows() for t, d in zip(ts[:4], ds[:4], strict=True)
]
"""Pairs of a target's and a draft's row."""


def relaxed_token_logit(rule: Rule, row: Tensor, token: Tensor) -> Tensor:
    """Return the drafted token's logit by which a row of logits becomes h, beside a deterministic draft."""
    return relax_tokens(rule, row[token], row.logsumexp(-1), (row, token)).logits


def engine_s_sampler(row: Tensor, draft: Tensor, drafted: int) -> Tensor:
    """Return the law of the token that a rejection sampler emits for a drafted one, from its two formulas."""
    h = row.double().softmax(-1)
    kept = (h[drafted] / draft[drafted]).clamp(max=1.0)
    residual = (h - draft).clamp(min=0)
    law = torch.zeros_like(h)
    law[drafted] = kept
    total = residual.sum()
    return law + (1 - kept) * residual / total if total > 0 else law  # nothing left up to rounding
