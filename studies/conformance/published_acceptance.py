"""What the acceptance code that other engines publish emits, enumerated.

`python -m studies.conformance.published_acceptance` writes the result. Each function is written from a file that
docs/studies/tables/conformance.md names, as a distribution over tokens, and compared with the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.pages import ROOT, Cell, columns
from scripts.results import parse, read, write

Row = NDArray[np.float64]
OUTPUT = ROOT / "docs" / "results" / "conformance" / "published_acceptance.json"
PAIRS, VOCABULARY = 500, 8
GREEDY = "TensorRT-LLM, relaxed_topk 10, relaxed_delta 0.5, from greedy"
"""Compared with the target's likeliest token, as it is for temperature 0."""


def sglang(target: Row, children: Sequence[int], *, single: float = 1.0, accumulated: float = 1.0) -> tuple[Row, float]:
    """Return what `TreeSpeculativeSamplingTargetOnly` emits at a node with these children, and how much it accepts.

    One number u tests the children in turn: the first is accepted for which u is at most the sum of the target's
    probabilities so far over ``accumulated``, or whose own probability is at least ``single``. After the last one the
    target without the children is drawn from.
    """
    emitted, total, below = np.zeros_like(target), 0.0, 0.0
    left = target.copy()
    for child in children:
        total += target[child]
        upto = 1.0 if target[child] >= single else min(max(total / accumulated, below), 1.0)
        emitted[child] += upto - below
        below, left[child] = upto, 0.0
    if below < 1:
        emitted += (1 - below) * left / left.sum()
    return emitted, below


def sglang_drawn(target: Row, draft: Row, **thresholds: float) -> tuple[Row, float]:
    """Return the same for one child that is drawn from the draft."""
    each = [sglang(target, [token], **thresholds) for token in range(len(target))]
    emitted = sum(p * row for p, (row, _) in zip(draft, each, strict=True))
    return np.asarray(emitted), float(sum(p * accepted for p, (_, accepted) in zip(draft, each, strict=True)))


def tensorrt(target: Row, draft: Row, threshold: float | None = None) -> tuple[Row, float]:
    """Return what `acceptDraftTokensKernel` emits for a token drawn from the draft, and how often it accepts it.

    The ratio of the probabilities is to be at least a random number, or a constant ``threshold``. After a rejection
    the positive part of target - draft is drawn from, whichever it was.
    """
    ratio = target / draft
    kept = draft * (np.minimum(ratio, 1) if threshold is None else ratio >= threshold)
    residual = np.maximum(target - draft, 0)
    return kept + (1 - kept.sum()) * residual / residual.sum(), float(kept.sum())


def strict(target: Row, draft: Row) -> tuple[Row, float]:
    """Return what `_sample_and_accept_draft_tokens_base` emits: the target's own draw, and the proposal if it is it."""
    return target, float((target * draft).sum())


def relaxed(target: Row, draft: Row, top_k: int, delta: float) -> tuple[Row, float]:
    """Return what `mtpRelaxedAcceptanceKernel` emits at temperature 0 within a thinking phase.

    A proposal among the target's ``top_k`` is accepted if its probability is at least the greatest less ``delta``.
    Otherwise the likeliest token comes.
    """
    candidates = np.argsort(-target)[:top_k]
    passing = candidates[target[candidates] >= target.max() - delta]
    emitted = np.zeros_like(target)
    emitted[passing] = draft[passing]
    accepted = float(emitted.sum())
    emitted[target.argmax()] += 1 - accepted
    return emitted, accepted


def likeliest(target: Row) -> Row:
    return np.eye(len(target))[target.argmax()]


CASES: dict[str, Callable[[Row, Row], tuple[Row, float]]] = {
    "SGLang, one drawn child": sglang_drawn,
    "SGLang, the draft's three likeliest": lambda q, p: sglang(q, [*np.argsort(-p)[:3]]),
    "SGLang, a child that stands there twice": lambda q, p: sglang(q, [p.argmax(), p.argmax()]),
    "SGLang, threshold_acc 0.9": lambda q, p: sglang_drawn(q, p, accumulated=0.9),
    "SGLang, threshold_single 0.3": lambda q, p: sglang_drawn(q, p, single=0.3),
    "SGLang, rejection sampling of a chain": tensorrt,
    "TensorRT-LLM, random threshold": tensorrt,
    "TensorRT-LLM, constant threshold 0.5": lambda q, p: tensorrt(q, p, 0.5),
    "TensorRT-LLM, constant threshold 1": lambda q, p: tensorrt(q, p, 1.0),
    "TensorRT-LLM, strict": strict,
    GREEDY: lambda q, p: relaxed(q, p, 10, 0.5),
    "the best lossless test of a drawn token": lambda q, p: (q, float(np.minimum(q, p).sum())),
}


def measured(seed: int = 0) -> list[dict[str, Any]]:
    """Return, over random pairs of distributions, how far each case is from the target and how much it accepts."""
    generator = np.random.default_rng(seed)
    pairs = [generator.dirichlet(np.ones(VOCABULARY), 2) for _ in range(PAIRS)]
    rows = []
    for name, emits in CASES.items():
        found = [emits(target, draft) for target, draft in pairs]
        wanted = [likeliest(target) if name == GREEDY else target for target, _ in pairs]
        apart = [np.abs(row - target).sum() / 2 for (row, _), target in zip(found, wanted, strict=True)]
        rows.append({"case": name, "mean_total_variation": float(np.mean(apart)),
                     "largest_total_variation": float(max(apart)),
                     "accepted": float(np.mean([accepted for _, accepted in found]))})  # fmt: skip
    return rows


def table() -> str:
    def apart(name: str) -> Cell:
        return lambda case: f"{case[name]:.3f}" if case[name] > 1e-12 else "0"

    return columns(read(OUTPUT)["cases"], {
        "code": "{case}", "total variation from the target: mean": apart("mean_total_variation"),
        "largest": apart("largest_total_variation"), "accepted": "{accepted:.3f}",
    })  # fmt: skip


if __name__ == "__main__":
    write(
        parse(__doc__, output=OUTPUT).output,
        {"cases": measured()},
        {"seed": 0, "pairs": PAIRS, "vocabulary": VOCABULARY},
    )
