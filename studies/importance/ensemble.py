"""Ensembles whose weight depends on the position, as in DIVERSED, beside the clamped ratio: exact, on rows.

    python -m studies.importance.ensemble                 both bundled drafts, 100 problems; minutes
    python -m studies.importance.ensemble --only-render   the tables again, from the result file

DIVERSED (arXiv 2604.07622) learns the weight of the static ensemble for each position. Here it is learned in three
ways: scaled by learned importance, as ``importance_scale`` does; fitted to both models' rows by the logistic regression
of learned importance, towards the weights that cost least KL; and as these very weights, which no learning can beat in
KL. Every way takes the knob at which it accepts as much, half-way between lossless and everything, on problems that
nothing was fitted to.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cactus_decoding import Lossless, audit, load_pair
from cactus_decoding.core.audit import audit_row
from cactus_decoding.core.policy.importance import Importance, read_importance
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.rules import ClampedRatio
from cactus_decoding.engines.transformers.cached_model import vocabulary_size
from cactus_decoding.lab.training.importance.fitting import Examples, fit
from scripts.pages import columns
from studies.importance.run import rows_of
from studies.study import least, study

RESULTS = Path(__file__).with_name("results") / "ensemble.json"
DRAFTS = {"bundled:worded": "bundled:worded", "bundled:draft": None}
"""Drafts, and the importance that was learned with them."""
FITTED, TASK = 0.5, "word_problems:split=validation,seed=1"
"""The share of the problems that weights are fitted to."""
Row = Callable[[float], Tensor]  # of a knob: the larger, the more is accepted


def cheapest_weights(q: Tensor, p: Tensor, gain: float) -> Tensor:
    """Return the ensemble's weight of each position that maximises acceptance less KL / gain, ``[positions, 1]``.

    Acceptance grows by TV(p, q) per weight, and KL by the sum of (p - q) log(h / q), which increases.
    """
    low, high = q.new_zeros(len(q), 1), q.new_ones(len(q), 1)
    bar = gain * (q - p).clamp(min=0).sum(-1, keepdim=True)
    for _ in range(50):
        weight = (low + high) / 2
        h = torch.lerp(q, p, weight)
        slope = torch.where(h > 0, (p - q) * (h / q).log(), 0.0).sum(-1, keepdim=True)
        low, high = torch.where(slope < bar, weight, low), torch.where(slope < bar, high, weight)
    return high


def learned(q: Tensor, p: Tensor, places: Tensor, vocabulary: Vocabulary, weights: Tensor) -> Importance:
    """Fit weights to rows by the logistic regression of learned importance."""
    from scipy.sparse import csr_array

    rows = torch.cat([q, p], -1)
    sparse = csr_array(torch.where(rows > 1e-4, rows, 0.0).numpy())
    nothing = np.zeros(len(rows))
    return fit(Examples(sparse, weights.squeeze(-1).numpy(), nothing, places.numpy()), vocabulary, folds=2)[0]


def at_acceptance(h_of: Row, p: Tensor, wanted: float, most: float) -> tuple[float, Tensor]:
    """Return the knob at which so much is accepted, and the rows that are emitted then, by bisection."""

    def enough(knob: float) -> bool:
        return torch.minimum(h_of(knob), p).sum(-1).mean().item() >= wanted

    knob = least(enough, 1e-6, most, 30)
    return knob, h_of(knob)


def measure(draft: str, importance: str | None, problems: int) -> dict[str, Any]:
    pair = load_pair("bundled", draft)
    words = Vocabulary.of(pair.tokenizer, vocabulary_size(pair.target.model))
    q, p, places = rows_of(pair, TASK, problems)
    fitted = places < FITTED * problems
    values = None if importance is None else read_importance(importance).fit(words)(q[~fitted], p[~fitted], [])
    (q_fitted, p_fitted), (q, p) = (q[fitted], p[fitted]), (q[~fitted], p[~fitted])
    lossless = audit(Lossless(), q, p).acceptance.mean().item()
    wanted = (1 + lossless) / 2
    gain, _ = at_acceptance(lambda x: torch.lerp(q, p, cheapest_weights(q, p, x)), p, wanted, 1e3)
    weights = cheapest_weights(q_fitted, p_fitted, gain)
    by_rows = learned(q_fitted, p_fitted, places[fitted], words, weights)(q, p, []).unsqueeze(-1)
    ways: dict[str, tuple[Row, float]] = {
        "clamped ratio": (lambda x: ClampedRatio(width=x).relaxed_target(q, p), 50.0),
        "ensemble, one weight": (lambda x: torch.lerp(q, p, torch.tensor(x).double()), 1.0),
        "ensemble, weight fitted to rows": (lambda x: torch.lerp(q, p, (x * by_rows).clamp(max=1)), 1e6),
        "ensemble, cheapest weights": (lambda x: torch.lerp(q, p, cheapest_weights(q, p, x)), 1e3),
    }
    if values is not None:
        harmless = 1 - values.unsqueeze(-1)
        ways["ensemble, weight scaled by importance"] = (lambda x: torch.lerp(q, p, (x * harmless).clamp(max=1)), 1e6)
        ways["clamped ratio, width scaled by importance"] = (partial(_scaled_widths, q, p, harmless), 50.0)
    found = []
    for name, (h_of, most) in ways.items():
        knob, h = at_acceptance(h_of, p, wanted, most)
        result = audit_row(h, q, p)
        gained = result.acceptance - audit(Lossless(), q, p).acceptance
        row = {"way": name, "knob": knob, "acceptance": result.acceptance.mean().item(), "tv": result.tv.mean().item()}
        row |= {"kl": result.kl.clamp(min=0).mean().item(), "max_log_ratio": result.max_log_ratio.max().item()}
        row["spoilt"] = None if values is None else (gained * values).mean().item()
        found.append(row)
        print(json.dumps(row), flush=True)
    return {"draft": draft, "positions": len(q), "lossless": lossless, "rows": found}


def _scaled_widths(q: Tensor, p: Tensor, factors: Tensor, width: float) -> Tensor:
    """Return the clamped ratio's rows where each has its own width; close widths are taken together."""
    steps = (width * factors.squeeze(-1) * 64 / width).round() / 64  # of the factor
    rows = torch.empty_like(q)
    for factor in steps.unique().tolist():
        here = steps == factor
        rows[here] = ClampedRatio(width=width * factor).relaxed_target(q[here], p[here])
    return rows


def measure_all(given: Namespace) -> dict[str, Any]:
    pairs = [measure(draft, importance, given.problems) for draft, importance in DRAFTS.items()]
    return {"pairs": pairs, "task": TASK}


def shown(result: dict[str, Any]) -> dict[str, str]:
    parts = []
    for pair in result["pairs"]:
        cheapest = pair["rows"][0]["kl"]
        heads = {
            "way": "{way}",
            "accepts": "{acceptance:.3f}",
            "KL, nats": "{kl:.4f}",
            "KL ÷ clamped's": lambda row, cheapest=cheapest: f"{row['kl'] / cheapest:.2f}",
            "TV": "{tv:.3f}",
            "log-ratio, at most": "{max_log_ratio:.1f}",
            "spoilt answers per 1,000 positions": lambda row: (
                "" if row["spoilt"] is None else f"{1000 * row['spoilt']:.2f}"
            ),
        }
        parts.append(
            f"`{pair['draft']}`: {pair['positions']:,} positions, of which lossless accepts {pair['lossless']:.3f}."
        )
        parts.append(columns(sorted(pair["rows"], key=lambda row: row["kl"]), heads))
    return {"ensembles": "\n\n".join(parts)}


if __name__ == "__main__":
    half = (100, "half of them to fit weights to")
    study(__doc__, RESULTS, "studies/tables/importance.md", measure_all, shown, problems=half)
