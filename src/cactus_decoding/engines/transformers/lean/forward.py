"""A forward pass for Llama and its relatives without the framework's overhead: the same weights, fewer operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, pad, silu

from cactus_decoding.engines.transformers.lean.arithmetic import arithmetic
from cactus_decoding.engines.transformers.lean.weights import LayerWeights, LeanWeights

CHUNK = 512
"""Tokens that go through the layers at once: a longer prompt's attention mask would grow with its square."""


class LeanForward:
    r"""Reproduces transformers' forward pass of an architecture that `read_weights` knows, up to rounding.

    With x the residual stream, each layer is

    .. math:: x \leftarrow x + O\,\mathrm{attention}(\mathrm{norm}(x)), \qquad
       x \leftarrow x + D\,(\mathrm{silu}(G\,\mathrm{norm}(x)) \odot U\,\mathrm{norm}(x)).

    Keys and values are written in place into a `StaticCache`. In 16 bits it also rounds where transformers rounds.
    """

    def __init__(self, weights: LeanWeights) -> None:
        w = self._weights = weights
        self._cache = StaticCache(len(w.layers), w.num_key_value_heads, w.head_dim, w.embedding, w.window)
        self._cos = self._sin = w.embedding.new_empty(0)
        self._frequencies = _frequencies(w)
        self._arithmetic = arithmetic(w.embedding.dtype, w.embedding.device, eager=w.eager)
        # float32 matrix products on CPUs are faster with 4 or 8 rows than with 3 or 7
        self._fills_rows = w.embedding.device.type == "cpu" and w.embedding.dtype == torch.float32

    def begin(self, weights: LeanWeights) -> bool:
        """Begin again, if what is reserved fits the weights that the model has by now; return whether it does."""
        fits = self._cache.fits(len(weights.layers), weights.num_key_value_heads, weights.head_dim, weights.embedding)
        if not (
            fits and weights.eager == self._weights.eager and torch.equal(_frequencies(weights), self._frequencies)
        ):
            return False
        self._weights = weights
        return True

    def append(
        self, token_ids: Tensor, start: int, rows: int, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Feed tokens; see `Forward.append`."""
        w, count = self._weights, len(token_ids)
        if self._fills_rows and count % 4 == 3:
            # one junk token behind the others: they do not see it, and the next token overwrites it
            token_ids = torch.cat((token_ids, token_ids[-1:]))
            positions = None if positions is None else torch.cat((positions, positions[-1:]))
            mask = None if mask is None else pad(pad(mask, (0, 1)), (0, 0, 0, 1), value=True)
        self._reserve(start + len(token_ids), start)
        if mask is not None:  # it is there in full already: nothing is saved by chunks of it
            x = self._through_layers(token_ids, start, positions, mask)
        else:
            x = self._through_layers(token_ids[:CHUNK], start, None if positions is None else positions[:CHUNK])
            for first in range(CHUNK, len(token_ids), CHUNK):
                chunk = slice(first, first + CHUNK)
                here = None if positions is None else positions[chunk]
                x = torch.cat((x, self._through_layers(token_ids[chunk], start + first, here)))
        return linear(self._arithmetic.norm(x[count - rows : count], w.norm, w.epsilon), w.head)

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Move a path; what lies beyond the length is overwritten, so that forgetting costs nothing."""
        if path:
            self._cache.move(path, prefix)
        return prefix + len(path)

    def save(self, length: int) -> list[Tensor]:
        """Return copies of keys and values, layer by layer."""
        return [store[:, :length].clone() for store in (*self._cache.keys, *self._cache.values)]

    def restore(self, saved: list[Tensor]) -> None:
        """Take copies."""
        length = saved[0].shape[1]
        self._reserve(length, 0)
        for store, each in zip((*self._cache.keys, *self._cache.values), saved, strict=True):
            store[:, :length] = each

    def _through_layers(
        self, token_ids: Tensor, start: int, positions: Tensor | None, mask: Tensor | None = None
    ) -> Tensor:
        """Return the residual stream after the last layer, ``[n, hidden]``."""
        w, norm, end = self._weights, self._arithmetic.norm, start + len(token_ids)
        x = embedding(token_ids, w.embedding)
        places = slice(start, end) if positions is None else positions
        rotary, bias = (self._cos[places], self._sin[places]), self._bias(start, end, x, mask)
        for i, layer in enumerate(w.layers):
            x += self._attend(layer, i, norm(x, layer.attention_norm, w.epsilon), rotary, bias, start)
            normed = norm(x, layer.mlp_norm, w.epsilon)
            x += linear(silu(linear(normed, layer.gate), inplace=True).mul_(linear(normed, layer.up)), layer.down)
        return x

    def _attend(
        self, layer: LayerWeights, i: int, x: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor | None, start: int
    ) -> Tensor:
        """Write keys and values into the cache; return the attention's output, ``[n, hidden]``."""
        w, n, end = self._weights, len(x), start + len(x)
        heads, head_dim = w.num_key_value_heads, w.head_dim
        norm, rotate, attend, _ = self._arithmetic
        query = linear(x, layer.query, layer.query_bias).view(n, -1, head_dim)
        key = linear(x, layer.key, layer.key_bias).view(n, heads, head_dim)
        value = linear(x, layer.value, layer.value_bias).view(n, heads, head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = norm(query, layer.query_norm, w.epsilon), norm(key, layer.key_norm, w.epsilon)
        keys, values = self._cache.keys[i], self._cache.values[i]
        keys[:, start:end] = rotate(key, *rotary).transpose(0, 1)
        values[:, start:end] = value.transpose(0, 1)
        attended = attend(rotate(query, *rotary), keys[:, :end], values[:, :end], bias, w.scaling)
        return linear(attended, layer.output)

    def _bias(self, start: int, end: int, like: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return what keeps queries from tokens that they do not see; None: they see them all."""
        if mask is not None:
            bias = like.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
        elif end - start == 1:
            return None
        else:
            bias = like.new_full((end - start, end), -torch.inf).triu_(start + 1)
        group = self._weights.num_heads // self._weights.num_key_value_heads
        return bias.repeat(group, 1) if group > 1 and self._arithmetic.groups else bias

    def _reserve(self, end: int, length: int) -> None:
        """Make room in the cache and in the table of rotations."""
        if end <= self._cache.capacity:
            return
        self._cache.reserve(end, length)
        positions = torch.arange(self._cache.capacity, device=self._cos.device)
        cos, sin = self._weights.rotary(self._weights.embedding, positions[None])
        half = self._weights.head_dim // 2
        self._cos, self._sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)
        self._sin = torch.cat((-self._sin[..., :half], self._sin[..., half:]), dim=-1)


def _frequencies(weights: LeanWeights) -> Tensor:
    """Return what the table of rotations is made from: angles per position, and the factor of cosines and sines."""
    rotary: Any = weights.rotary
    return torch.cat((rotary.inv_freq, rotary.inv_freq.new_tensor([rotary.attention_scaling])))


class StaticCache:
    """Keys and values of each layer, ``[key_value_heads, capacity, head_dim]``; only the first ``length`` count.

    Who reads it keeps the length, so a rollback is a smaller number and no work. Capacity doubles when it runs out, so
    a response of n tokens copies no more than n of them, and a step copies none.

    No more than ``max_length`` tokens are reserved unless more are asked for.
    """

    MIN_CAPACITY = 256

    def __init__(self, layers: int, heads: int, head_dim: int, like: Tensor, max_length: int) -> None:
        self._max_length = max_length
        self.keys = [like.new_empty(heads, 0, head_dim) for _ in range(layers)]
        self.values = [like.new_empty(heads, 0, head_dim) for _ in range(layers)]

    @property
    def capacity(self) -> int:
        """Tokens that there is room for."""
        return self.keys[0].shape[1]

    def fits(self, layers: int, heads: int, head_dim: int, like: Tensor) -> bool:
        """Say whether this is a cache for such keys and values."""
        keys = self.keys[0]
        shape = (len(self.keys), keys.shape[0], keys.shape[2])
        return shape == (layers, heads, head_dim) and keys.dtype == like.dtype and keys.device == like.device

    def move(self, places: list[int], first: int) -> None:
        """Move what lies at some places to ``first`` and those after it."""
        index = torch.tensor(places, device=self.keys[0].device)
        for store in (*self.keys, *self.values):
            store[:, first : first + len(places)] = store.index_select(1, index)

    def reserve(self, end: int, length: int) -> None:
        """Make room for ``end`` tokens, keeping the first ``length``."""
        if end <= self.capacity:
            return
        room = max(2 * self.capacity, self.MIN_CAPACITY)
        if end <= self._max_length:  # beyond it, capacity doubles again
            room = max(end, min(room, self._max_length))
        room = max(end, room)
        for store in (self.keys, self.values):
            for i, old in enumerate(store):
                store[i] = old.new_empty(old.shape[0], room, old.shape[2])
                store[i][:, :length] = old[:, :length]
