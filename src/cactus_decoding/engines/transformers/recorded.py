"""Passes over a few tokens, recorded from the model itself and replayed without its Python.

What a small model takes for a token is mostly Python: of the bundled draft's pass, three fifths. So what PyTorch is
asked for in a pass of a kind, over so many tokens, is recorded when such passes are frequent. A recording has no
weights, which it is given each time. It is used only if it gives the model's own numbers, bit for bit, at two lengths
of the cache.
"""

from __future__ import annotations

import copy
import inspect
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.overrides import TorchFunctionMode
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from cactus_decoding.engines.transformers import compatibility
from cactus_decoding.engines.transformers.row_cache import RowLayer, attend

MAX_TOKENS = 32  # of a recorded pass
FREQUENT = 256  # passes of a kind after which it is recorded: that takes as long as some hundreds of passes save
_MOST_WEIGHTS = 600_000_000  # beyond, a pass's Python is hardly a hundredth of it
_MOST = 16  # recordings of a model: of 24 layers, one holds some 20 MB
_LENGTHS = 6, 11  # of the cache, at which a recording is compared with the model
_ROOM = 1024
ATTENTION = "recorded_sdpa"
"""The attention's name while a pass is recorded: it has no mask in the registry, so none is made but the given one."""

AttentionInterface.register(ATTENTION, attend)
_CASTS = {"__bool__", "__int__", "__index__", "__float__", "__complex__", "item", "tolist", "numpy", "__array__"}
_TO_PYTHON = _CASTS | {"__len__", "__contains__", "equal", "allclose", "is_nonzero", "tensor", "as_tensor"}
"""Functions that make something of Python of a tensor, or the other way round."""
_RECORDING = threading.Lock()  # filters of warnings are the process's


class RecordedPass:
    """A pass over ``count`` tokens that returns their last ``rows`` logits.

    ``fill`` is how many tokens more it reads, the last one again, which the others do not see.
    """

    def __init__(
        self, model: PreTrainedModel, config: Any, plain: Callable[[], Any], count: int, rows: int, fill: int = 0
    ) -> None:
        """Raise any `Exception` where the model's pass cannot be recorded, or a recording gives other numbers."""
        self.count, self.rows, self.fill = count, rows, fill
        self.weights = [*model.parameters()]  # and no copies, which would keep what they held when they move or change
        self._make_room(_ROOM)
        made = _traceable(model, config, self)
        short, long = (_Example(plain(), config, self, length) for length in _LENGTHS)
        example = (long.block, *self.places(long.length), *self.weights, *long.stores())
        with _RECORDING, _without_tracers_warnings(), _Strict():
            # `torch.jit.trace` makes the same, and never frees it
            graph, _ = torch._C._create_graph_by_tracing(made, example, lambda _: "", True, False)
        torch._C._jit_pass_cse(graph)
        torch._C._jit_pass_constant_pooling(graph)  # type: ignore[attr-defined]
        self._function: Callable[..., Tensor] = torch._C._create_function_from_graph("one_pass", graph)
        for each in (short, long):
            each.check()

    def __call__(self, token_ids: Tensor, start: int, layers: Sequence[RowLayer]) -> Tensor:
        """Read tokens after the first ``start`` of the layers; return logits, ``[rows, vocabulary]``."""
        end = start + self.count + self.fill
        if end > len(self._numbers):
            self._make_room(2 * end)
        stores = [store for layer in layers for store in layer.with_room(end)]
        logits = self.compute(token_ids, self.places(start), stores)
        for layer in layers:
            layer.use(start + self.count)
        return logits

    def compute(self, token_ids: Tensor, places: Sequence[Tensor], stores: Sequence[Tensor]) -> Tensor:
        # PyTorch would fold and fuse, and take its time for that
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self._function(token_ids, *places, *self.weights, *stores)

    def places(self, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what says where the tokens stand: the earlier places, all of them, and which are seen from where."""
        return self._numbers[:start], self._numbers, self._seen

    def _make_room(self, room: int) -> None:
        read = self.count + self.fill
        self._numbers = torch.arange(room)
        self._seen = torch.ones(read, room + read, dtype=torch.bool).tril_(room)[None, None]


class _RecordingLayer(DynamicLayer):
    """Writes into a store behind its first tokens, of which there may be another number at each call."""

    def __init__(self, start: Any, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self._stores, self._start, self.is_initialized = (keys, values), start, True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        end = self._start + key_states.shape[-2]
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[:, :, self._start : end] = new
        keys, values = self._stores
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self) -> Any:
        return self._start


def _traceable(model: PreTrainedModel, config: Any, kind: RecordedPass) -> Callable[..., Tensor]:
    cache_argument = compatibility.cache_argument(model) or compatibility.default_cache_argument()
    read, shadow, num_weights = kind.count + kind.fill, _Shadow(model, config), len(kind.weights)

    def one_pass(block: Tensor, before: Tensor, numbers: Tensor, seen: Tensor, *rest: Tensor) -> Tensor:
        start, weights, stores = before.shape[0], rest[:num_weights], rest[num_weights:]
        positions = numbers[start : start + kind.count]
        if kind.fill:
            block, positions = torch.cat((block, block[-1:])), torch.cat((positions, positions[-1:]))
        cache = compatibility.empty_cache(config, record_past=True)
        cache.layers = [_RecordingLayer(start, stores[i], stores[i + 1]) for i in range(0, len(stores), 2)]
        given = {
            "input_ids": block[None], "position_ids": positions[None], "use_cache": True, cache_argument: cache,
            "attention_mask": seen[..., numbers.shape[0] - start :] if read > 1 else None,
            "logits_to_keep": kind.rows + kind.fill,
        }  # fmt: skip
        logits: Tensor = shadow(weights, **given).logits[0]
        return logits[: kind.rows]

    return one_pass


class _Shadow:
    """A model's modules once more, with the same buffers, and weights and attention that may be others."""

    def __init__(self, model: PreTrainedModel, config: Any) -> None:
        self._places: dict[int, list[tuple[dict[str, Any], str]]] = {id(weight): [] for weight in model.parameters()}
        self._made: dict[int, nn.Module] = {}
        self._configs = {id(config): copy.copy(config)}
        compatibility.use_attention(self._configs[id(config)], ATTENTION)
        self._model = self._of(model)

    def __call__(self, weights: Sequence[Tensor], **given: Any) -> Any:
        for weight, places in zip(weights, self._places.values(), strict=True):
            for holder, name in places:
                holder[name] = weight
        return self._model(**given)

    def _of(self, module: nn.Module) -> nn.Module:
        if id(module) in self._made:
            return self._made[id(module)]
        made = self._made[id(module)] = object.__new__(type(module))
        made.__dict__.update({name: self._configs.get(id(value), value) for name, value in vars(module).items()})
        parameters, modules = dict(module._parameters), dict(module._modules)
        made.__dict__.update(_parameters=parameters, _modules=modules)
        for name, weight in parameters.items():
            if weight is not None:
                self._places[id(weight)].append((parameters, name))
        for name, child in modules.items():
            modules[name] = None if child is None else self._of(child)
        return made


class _Strict(TorchFunctionMode):
    """Raises `ValueError` where Python decides by a tensor's values, which a recording would do as the first time.

    Attentions decide by the number of tokens, which a recording has only one of. PyTorch warns of such places too, but
    warnings are the process's, and what another thread does with their filters would hide them.
    """

    _known = inspect.getfile(attend), inspect.getfile(compatibility.SDPA)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, caller = getattr(func, "__name__", ""), sys._getframe(1).f_code
        if (name in _TO_PYTHON or caller.co_name == "__iter__") and caller.co_filename not in self._known:
            raise ValueError(f"a pass in which Python decides by numbers cannot be recorded: {name} of a tensor")
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_tracers_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # type: ignore[attr-defined]
        yield


class _Example:
    """A cache of some tokens, and what the model gives for a block after it."""

    def __init__(self, own: Any, config: Any, kind: RecordedPass, length: int) -> None:
        self.length, self._kind, self._numbers = length, kind, torch.arange(length + kind.count)
        tokens = (self._numbers * 7919 + length) % int(config.vocab_size)
        own.append(tokens[:length], 0, 1)
        self._layers = [copy.deepcopy(layer) for layer in own.layers]
        self.block = tokens[length:]
        self._expected = own.append(self.block, length, kind.rows)
        self._filled = own.layers

    def stores(self) -> list[Tensor]:
        room = self.length + self._kind.count + self._kind.fill
        return [store for layer in self._layers for store in layer.with_room(room)]

    def check(self) -> None:
        """Raise `ValueError` where a recording gives other logits, or writes other keys and values."""
        logits = self._kind(self.block, self.length, self._layers)
        made = [(logits, self._expected)]
        for ours, theirs in zip(self._layers, self._filled, strict=True):
            made += [(ours.keys, theirs.keys), (ours.values, theirs.values)]
        if not all(torch.equal(one, other) for one, other in made):
            raise ValueError("a recorded pass gives other numbers than the model")


class RecordedPasses:
    """The recorded passes of a model in one state, by kind."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int], RecordedPass | None] = {}
        self._asked: Counter[tuple[int, int, int]] = Counter()

    def of(
        self, model: PreTrainedModel, config: Any, plain: Callable[[], Any], count: int, rows: int, fill: int
    ) -> RecordedPass | None:
        """Return the recording of such a pass, once it is frequent; None where there is none.

        ``plain`` makes the forward pass that it must equal, with a cache of its own.
        """
        if count > MAX_TOKENS:
            return None
        kind = count, rows, fill
        if kind not in self._made:
            self._asked[kind] += 1
            if self._asked[kind] < FREQUENT or len(self._made) >= _MOST:
                return None
            self._made[kind] = _recorded(model, config, plain, *kind)
        return self._made[kind]


def _recorded(
    model: PreTrainedModel, config: Any, plain: Callable[[], Any], count: int, rows: int, fill: int
) -> RecordedPass | None:
    with suppress(Exception):  # whatever a model does that cannot be recorded
        return RecordedPass(model, config, plain, count, rows, fill)
    return None


_PASSES: WeakKeyDictionary[PreTrainedModel, tuple[Any, RecordedPasses]] = WeakKeyDictionary()


def recorded_passes(model: PreTrainedModel, state: Any) -> RecordedPasses | None:
    """Return the recordings of a model, new ones if its state has changed; None where none can be made."""
    if not can_be_recorded(model):
        _PASSES.pop(model, None)
        return None
    known = _PASSES.get(model)
    if known is None or known[0] != state:
        known = _PASSES[model] = state, RecordedPasses()
    return known[1]


def can_be_recorded(model: PreTrainedModel) -> bool:
    """Whether a model's pass is nothing but the tensors that it computes, as far as can be told, on a CPU."""
    if sys.version_info >= (3, 14) or model.device.type != "cpu" or model.training:
        return False
    if torch.is_autocast_enabled("cpu") or _global_forward_hooks or _global_forward_pre_hooks:
        return False
    attention = compatibility.attention_of(model.config.get_text_config(decoder=True))
    if attention != "sdpa" or not (compatibility.reads_attention_from_registry(model) and compatibility.sdpa_is_own()):
        return False
    if any(type(weight) is not nn.Parameter for weight in model.parameters()):
        return False
    return model.num_parameters() <= _MOST_WEIGHTS and all(_is_plain(module) for module in model.modules())


def _is_plain(module: nn.Module) -> bool:
    """Whether a module's code is that of PyTorch or transformers, and nothing is hooked to it or put in its place."""
    kind, packages = type(module), ("torch", "transformers")
    code = kind.__module__, getattr(kind.forward, "__globals__", {}).get("__name__", "")
    known = all(name.partition(".")[0] in packages for name in code)
    return known and "forward" not in vars(module) and not (module._forward_hooks or module._forward_pre_hooks)
