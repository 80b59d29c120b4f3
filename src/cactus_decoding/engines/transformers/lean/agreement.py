"""Whether the lean forward pass computes what a model's own pass computes: both read one short text."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cactus_decoding.engines.transformers.forward import GeneralForward
from cactus_decoding.engines.transformers.lean.forward import LeanForward
from cactus_decoding.engines.transformers.lean.recognition import Fingerprint, fingerprint, lean_obstacle
from cactus_decoding.engines.transformers.lean.weights import LeanWeights, read_weights

_BLOCKS = (8, 1, 3)
"""Tokens that both passes read at once: a prompt, then what a step may read."""


class _Comparison(NamedTuple):
    of: Fingerprint
    obstacle: str | None


_comparisons: WeakKeyDictionary[PreTrainedModel, _Comparison] = WeakKeyDictionary()


def read_if_lean(model: PreTrainedModel) -> LeanWeights | str:
    """Return the weights of a model whose forward pass `LeanForward` reproduces, or why it does not.

    Both passes are compared once for each model, and again when something of it, or of the code that computes it, was
    replaced: see `fingerprint`. Where they differ there is a warning, once too.
    """
    obstacle = lean_obstacle(model)
    if obstacle is not None:
        return obstacle
    weights, now, last = read_weights(model), fingerprint(model), _comparisons.get(model)
    if last is None or not last.of.same(now):
        difference, tolerance = relative_difference(model, weights), allowed_difference(model.dtype)
        if not difference <= tolerance:
            obstacle = (
                f"its logits differ from those of transformers' by {difference:.1e}, where {tolerance:.1e} is allowed"
            )
            warnings.warn(
                f"{type(model).__name__} is read by transformers' own forward pass, because something of it, or of "
                f"what computes it, was changed: with the faster one {obstacle}",
                stacklevel=2,
            )
        last = _comparisons[model] = _Comparison(now, obstacle)
    return weights if last.obstacle is None else last.obstacle


@torch.inference_mode()
def relative_difference(model: PreTrainedModel, weights: LeanWeights) -> float:
    r"""Return how far the two passes' logits are apart.

    .. math:: \max_{\text{row}} \frac{\lVert a - b \rVert_2}{\lVert b - \bar b \rVert_2}

    with a the lean pass's row and b the model's own.
    """
    lean, own = LeanForward(weights), GeneralForward(model, {})
    vocabulary, start, worst = weights.embedding.shape[0], 0, 0.0
    for count in _BLOCKS:
        # spread over the vocabulary, each another one
        tokens = torch.arange(start + 1, start + count + 1, device=model.device) * max(vocabulary // 13, 1) % vocabulary
        rows = [forward.append(tokens, start, count) for forward in (lean, own)]
        worst = max(worst, _worst_row(*rows))
        start += count
    return worst


def _worst_row(rows: Tensor, expected: Tensor) -> float:
    """Compare rows; infinite and missing numbers of a broken model are equal where both have them."""
    finite = expected.isfinite()
    if not torch.equal(rows.isfinite(), finite):
        return math.inf
    ours, theirs = (given.double().where(finite, 0.0) for given in (rows, expected))
    spread = (theirs - theirs.mean(-1, keepdim=True)).norm(dim=-1)
    return float(((ours - theirs).norm(dim=-1) / spread.clamp_min(torch.finfo(torch.float64).tiny)).max())


def allowed_difference(dtype: torch.dtype) -> float:
    """Return the square root of a dtype's relative precision: both passes agree in half of its digits.

    Norms and rotations of transformers have no more digits than float32 whatever the dtype, and products of matrices
    have fewer where `torch.set_float32_matmul_precision` says so.

    Example:
        >>> round(allowed_difference(torch.float32), 5), round(allowed_difference(torch.bfloat16), 2)
        (0.00035, 0.09)
    """
    precision = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        precision = torch.finfo(torch.bfloat16).eps
    return math.sqrt(precision)
