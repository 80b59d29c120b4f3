"""A forward pass for Llama and its relatives without the framework's overhead: the same weights, fewer operations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, pad, rms_norm, scaled_dot_product_attention, silu

from cactus_decoding.models.weights import LayerWeights, Weights

CHUNK = 512
"""Tokens that go through the layers at once: a longer prompt's attention mask would grow with its square."""


class LeanForward:
    r"""Reproduces transformers' forward pass of an architecture that `read_weights` knows, up to rounding.

    With x the residual stream, each layer is

    .. math:: x \leftarrow x + O\,\mathrm{attention}(\mathrm{norm}(x)), \qquad
       x \leftarrow x + D\,(\mathrm{silu}(G\,\mathrm{norm}(x)) \odot U\,\mathrm{norm}(x)).

    Keys and values are written in place into a `StaticCache`. Query heads that share a key head are attended to as
    further queries of it, so that no key is ever repeated.
    """

    def __init__(self, weights: Weights) -> None:
        w = self._weights = weights
        self._cache = StaticCache(len(w.layers), w.num_key_value_heads, w.head_dim, w.embedding, w.window)
        self._cos = self._sin = w.embedding.new_empty(0)
        self._frequencies = w.rotary.inv_freq
        # float32 matrix products on CPUs are faster with 4 or 8 rows than with 3 or 7
        self._fills_rows = w.embedding.device.type == "cpu" and w.embedding.dtype == torch.float32

    def begin(self, weights: Weights) -> bool:
        """Begin again, if what is reserved fits the weights that the model has by now; return whether it does."""
        fits = self._cache.fits(len(weights.layers), weights.num_key_value_heads, weights.head_dim, weights.embedding)
        if fits and weights.rotary.inv_freq is self._frequencies:
            self._weights = weights
            return True
        return False

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
        return linear(rms_norm(x[count - rows : count], w.norm.shape, w.norm, w.epsilon), w.head)

    def keep(self, length: int, prefix: int, path: list[int]) -> int:
        """Move a path; what lies beyond the length is overwritten, so that forgetting costs nothing."""
        if path:
            self._cache.move(path, prefix)
        return prefix + len(path)

    def _through_layers(
        self, token_ids: Tensor, start: int, positions: Tensor | None, mask: Tensor | None = None
    ) -> Tensor:
        """Return the residual stream after the last layer, ``[n, hidden]``."""
        w, end = self._weights, start + len(token_ids)
        x = embedding(token_ids, w.embedding)
        places = slice(start, end) if positions is None else positions
        rotary, bias = (self._cos[places], self._sin[places]), self._bias(start, end, x, mask)
        for i, layer in enumerate(w.layers):
            x += self._attend(layer, i, rms_norm(x, w.norm.shape, layer.attention_norm, w.epsilon), rotary, bias, start)
            normed = rms_norm(x, w.norm.shape, layer.mlp_norm, w.epsilon)
            x += linear(silu(linear(normed, layer.gate), inplace=True).mul_(linear(normed, layer.up)), layer.down)
        return x

    def _attend(
        self, layer: LayerWeights, i: int, x: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor | None, start: int
    ) -> Tensor:
        """Write keys and values into the cache; return the attention's output, ``[n, hidden]``."""
        w, n = self._weights, len(x)
        heads, head_dim = w.num_key_value_heads, w.head_dim
        query = linear(x, layer.query, layer.query_bias).view(n, -1, head_dim)
        key = linear(x, layer.key, layer.key_bias).view(n, heads, head_dim)
        value = linear(x, layer.value, layer.value_bias).view(n, heads, head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(query, (head_dim,), layer.query_norm, w.epsilon)
            key = rms_norm(key, (head_dim,), layer.key_norm, w.epsilon)
        keys, values = self._cache.keys[i], self._cache.values[i]
        keys[:, start : start + n] = _rotate(key, *rotary).transpose(0, 1)
        values[:, start : start + n] = value.transpose(0, 1)
        # [n, key head, group, d] -> [key head, group * n, d]
        grouped = _rotate(query, *rotary).view(n, heads, -1, head_dim).permute(1, 2, 0, 3).reshape(heads, -1, head_dim)
        attended = scaled_dot_product_attention(
            grouped[None], keys[None, :, : start + n], values[None, :, : start + n], attn_mask=bias
        )
        return linear(attended.view(heads, -1, n, head_dim).permute(2, 0, 1, 3).reshape(n, -1), layer.output)

    def _bias(self, start: int, end: int, like: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return what keeps queries from tokens that they do not see, ``[group * n, end]``; None: they see them all."""
        if mask is not None:
            bias = like.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)
        elif end - start == 1:
            return None
        else:
            bias = like.new_full((end - start, end), -torch.inf).triu_(start + 1)
        group = self._weights.num_heads // self._weights.num_key_value_heads
        return bias if group == 1 else bias.repeat(group, 1)

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


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + d/2) of ``[n, heads, d]`` by their position's angles."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


class StaticCache:
    """Keys and values of each layer, ``[key_value_heads, capacity, head_dim]``; only the first ``length`` count.

    Who reads it keeps the length, so a rollback is a smaller number and no work. Capacity doubles when it runs out, so
    a response of n tokens copies no more than n of them, and a step copies none.

    Args:
        layers: how many.
        heads: key and value heads.
        head_dim: numbers in each of them.
        like: a tensor of the dtype and on the device that are wanted.
        max_length: how many tokens to reserve at most, unless more are asked for.
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
