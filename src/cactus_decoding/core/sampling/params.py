"""From logits to probabilities: temperature and truncation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Protocol

import numpy as np
from pydantic import AfterValidator

from cactus_decoding.core.declared import Model, Setting
from cactus_decoding.core.types import LogitsToProbs

if TYPE_CHECKING:
    from torch import Tensor

_GROUP = 64  # entries per group. The maxima of the groups cost one pass at the speed of memory
_WITHIN = np.arange(_GROUP)

Scale = Callable[["Tensor"], "Tensor"]


def _unscaled(values: Tensor) -> Tensor:
    return values


def largest(row: Tensor, count: int, scale: Scale = _unscaled) -> tuple[Tensor, Tensor]:
    """Return the ids, ascending, and scaled values of all entries at least as large as the ``count``-th, ties included.

    The row is ``[vocabulary]``, on the CPU; NaN counts as the largest. ``scale`` is an increasing function, which may
    map different entries to the same.
    """
    if len(row) // _GROUP <= 2 * count:
        values, ids = scale(row), np.arange(len(row))
    else:  # as many groups have an entry this large, so that the one sought is no smaller
        maxima = _maxima(row, scale)
        values, ids = _members(row, maxima, maxima.topk(count).values[-1].item(), scale)
    return _select(values, ids, values.topk(count).values[-1].item())


def at_least(row: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    return _select(*_members(row, _maxima(row, _unscaled), floor, _unscaled), floor)


def _maxima(row: Tensor, scale: Scale) -> Tensor:
    """Return the maximum of each group of neighbours; what is left over at the end belongs to no group."""
    groups = len(row) // _GROUP
    # neighbours, although strided groups are faster in the cache: a row that comes from memory is read in order
    return scale(row[: groups * _GROUP].view(groups, _GROUP).amax(1))


# On a few entries NumPy takes a third of the time of PyTorch, hence the change of library.
def _members(row: Tensor, maxima: Tensor, floor: float, scale: Scale) -> tuple[Tensor, np.ndarray]:
    """Return scaled values and ids, ascending, of the groups that reach a floor and of what belongs to no group."""
    import torch

    end = len(maxima) * _GROUP
    groups = np.flatnonzero(~(maxima.numpy() < floor))  # a floor of NaN keeps everything
    values = row[:end].view(-1, _GROUP).index_select(0, torch.from_numpy(groups)).flatten()
    ids = (groups[:, None] * _GROUP + _WITHIN).ravel()
    if end < len(row):
        values, ids = torch.cat([values, row[end:]]), np.concatenate([ids, np.arange(end, len(row))])
    return scale(values), ids


def _select(values: Tensor, ids: np.ndarray, floor: float) -> tuple[Tensor, Tensor]:
    import torch

    wide = values.numpy()
    kept = np.flatnonzero(~(wide < floor))
    return torch.from_numpy(ids[kept]), torch.from_numpy(wide[kept])


LARGE_VOCABULARY = 4096  # from so many tokens on, rows on the CPU are truncated one at a time, without a sort
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-20, 1e30
"""Below the first temperature logits of ordinary size overflow in float32; above the second all rows are uniform."""
_FIRST_GUESS = 256  # how many of the most likely tokens usually reach top-p


def _temperature(given: float) -> float:
    return 0.0 if given < _MIN_TEMPERATURE else given


class SamplingParams(Model):
    """How a model's logits become the distribution that is sampled.

    Temperature is applied first, then top-k, top-p and min-p; each cut renormalises. Ties at a cut are kept, except by
    top-p, which keeps no more of equally likely tokens than it needs. At temperature 0 the first of equals is taken;
    anything below 10⁻²⁰ becomes 0, because logits that are divided by it overflow.

    Logits whose greatest is NaN or infinite give no probabilities: all are NaN, at any temperature.

    Raises:
        ValueError: for a parameter out of range.

    Example:
        >>> import torch
        >>> SamplingParams(top_k=1)(torch.tensor([1.0, 3.0, 2.0]))
        tensor([0., 1., 0.])
    """

    temperature: Annotated[
        float,
        Setting(
            "0 takes the most likely token; 1 leaves the model's probabilities as they are.",
            ge=0,
            lt=math.inf,
            metavar="T",
            from_clients=True,
        ),
        AfterValidator(_temperature),
    ] = 1.0
    top_k: Annotated[
        int,
        Setting(
            "How many of the most likely tokens are kept; 0 keeps all.", "tokens", ge=0, metavar="K", from_clients=True
        ),
    ] = 0
    top_p: Annotated[
        float, Setting("The probability mass that is kept, in (0, 1].", gt=0, le=1, metavar="P", from_clients=True)
    ] = 1.0
    min_p: Annotated[
        float,
        Setting(
            "Least probability kept, relative to the likeliest token's, in [0, 1].",
            ge=0,
            le=1,
            metavar="P",
            from_clients=True,
        ),
    ] = 0.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Return probabilities, ``[..., vocabulary]`` in float32 or wider, for logits of the same shape.

        Raises:
            TypeError: for logits that are no floating-point tensor.
            ValueError: for no vocabulary.
        """
        import torch

        from cactus_decoding.core.checks import check_floats

        logits = check_floats("logits", logits, "logits")
        vocabulary = logits.shape[-1]
        if self.truncates and vocabulary >= LARGE_VOCABULARY and logits.device.type == "cpu":
            return self._row_by_row(logits)
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        if self.temperature == 0:
            token_ids, certain = _most_likely(logits)
            others = (certain - 1).expand(logits.shape).clone(memory_format=torch.contiguous_format)
            return others.scatter_(-1, token_ids, certain)
        logits = self._scale(logits)
        if 0 < self.top_k < vocabulary:
            floor = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < floor, -math.inf)
        return self._cut(logits.softmax(-1))

    @property
    def truncates(self) -> bool:
        """Whether the least likely tokens are cut, so that what is left has a sparse form."""
        return self.temperature == 0 or self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def described(self) -> str:
        """Temperature and cuts for people, such as ``temperature 0.6, top-p 0.95``."""
        cuts = {name: value for name, value in self if name != "temperature" and value != getattr(_UNCUT, name)}
        said = [f"{name.replace('_', '-')} {value:g}" for name, value in cuts.items()] or ["no truncation"]
        return ", ".join([f"temperature {self.temperature:g}", *said])

    def sparse_row(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids, ascending, and probabilities of the tokens that are left of one row; some may be 0.

        The probabilities are those that a call gives, without sorting the row. A row whose greatest logit is NaN or
        infinite gives all tokens, each with NaN.
        """
        import torch

        if self.temperature == 0:
            token_ids, certain = _most_likely(logits)
            certain = certain.float() if certain.dtype.itemsize < 4 else certain
            return (token_ids, certain) if math.isfinite(certain.item()) else _no_probabilities(logits)
        if 0 < self.top_k < logits.shape[-1]:
            ids, scaled = largest(logits, self.top_k, self._scale)
            if not math.isfinite(scaled.amax().item()):
                return _no_probabilities(logits)
            return ids, self._cut_listed(scaled.softmax(-1))
        probs = self._scale(logits).softmax(-1)
        if self.top_p == 1:
            ids, kept = at_least(probs, self.min_p * probs.amax().item())
            return ids, self._cut_listed(kept)
        total, count, rest = probs.sum(dtype=torch.float64).item(), _FIRST_GUESS, math.inf
        while rest > 1 - self.top_p:
            ids, kept = largest(probs, min(count, len(probs)))
            rest, count = total - kept.sum(dtype=torch.float64).item(), 8 * count
            if len(ids) == len(probs):
                break
        return ids, self._cut_listed(kept, rest)

    def _cut_listed(self, probs: Tensor, rest: float = 0.0) -> Tensor:
        """Cut the listed tokens of one row, ``[tokens]``, in place; ``rest`` is the mass of less likely ones."""
        row = probs.numpy()
        if self.top_p < 1:
            order = row.argsort(kind="stable")
            dropped = row[order].cumsum(dtype=np.float64) <= 1 - self.top_p - rest
            dropped[-1] = False  # always keep the most likely
            row[order[dropped]] = 0
            row /= row.sum()
        if self.min_p > 0:
            row[row < self.min_p * row.max()] = 0
            row /= row.sum()
        return probs

    def _scale(self, logits: Tensor) -> Tensor:
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        return logits if self.temperature == 1 else logits / min(self.temperature, _MAX_TEMPERATURE)

    def _row_by_row(self, logits: Tensor) -> Tensor:
        import torch

        rows = logits.reshape(-1, logits.shape[-1])
        probs = torch.zeros(rows.shape, dtype=torch.float32 if logits.dtype.itemsize < 4 else logits.dtype)
        for row, dense in zip(rows, probs, strict=True):
            ids, kept = self.sparse_row(row)
            dense[ids] = kept
        return probs.reshape(logits.shape)

    def _cut(self, probs: Tensor) -> Tensor:
        if self.top_p < 1:
            probs = _cut_top_p(probs, self.top_p)
        if self.min_p > 0:
            floor = self.min_p * probs.amax(-1, keepdim=True)
            probs = _renormalise(probs.masked_fill(probs < floor, 0.0))
        return probs


_UNCUT = SamplingParams()


class RowSampling(Protocol):
    """How the logits of one response become the probabilities that its tokens are drawn from.

    An engine's order of temperature and cuts, logits processors, penalties, biases and grammars all belong here. A call
    is a `LogitsToProbs`; both methods must be functions of their arguments, because they are also asked about tokens
    that are rejected.
    """

    @property
    def plain(self) -> SamplingParams | None:
        """The `SamplingParams` that give the same probabilities, if any do."""

    def __call__(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        """Return probabilities, ``[rows, vocabulary]``; the last row follows all the tokens."""

    def untempered(self, logits: Tensor, token_ids: list[int]) -> Tensor: ...


class SamplingFn:
    def __init__(self, sampling: SamplingParams) -> None:
        self.plain = sampling

    def __call__(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        return self.plain(logits)

    def untempered(self, logits: Tensor, token_ids: list[int]) -> Tensor:
        return _UNCUT(logits)


def is_greedy(to_probs: LogitsToProbs) -> bool:
    """Whether a function just takes the likeliest token, so that its probabilities need not be computed."""
    plain: SamplingParams | None = getattr(to_probs, "plain", None)
    return plain is not None and plain.temperature == 0


def _most_likely(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place of the greatest logit, and 1, or NaN where that logit is NaN or infinite; ``[..., 1]`` each.

    NaN counts as the greatest, so that no other logit need be looked at.
    """
    token_ids = logits.argmax(-1, keepdim=True)
    greatest = logits.gather(-1, token_ids)
    return token_ids, greatest - greatest + 1


def _no_probabilities(logits: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    wide = torch.float32 if logits.dtype.itemsize < 4 else logits.dtype
    return torch.arange(len(logits)), torch.full(logits.shape, math.nan, dtype=wide)


def _cut_top_p(probs: Tensor, top_p: float) -> Tensor:
    """Drop the least likely tokens whose masses together are at most ``1 - top_p``; always keep the most likely."""
    import torch

    ascending, order = probs.sort(-1)
    dropped = ascending.cumsum(-1) <= 1 - top_p
    dropped[..., -1] = False
    return _renormalise(probs.masked_fill(torch.zeros_like(dropped).scatter(-1, order, dropped), 0.0))


def _renormalise(probs: Tensor) -> Tensor:
    return probs / probs.sum(-1, keepdim=True)
