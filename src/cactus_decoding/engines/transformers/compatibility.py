"""What depends on transformers' internals: names, signatures, what differs between versions, and a check of them."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from cactus_decoding.core.models.base import Forward

TRIED = ("5.0.0", "5.19.0", "5.20.2", "5.22.2", "5.24.0")
"""Versions of transformers on which the tests of this folder and of models passed."""
CACHE_NAMES = ("cache", "past_key_values")
"""What a model's ``forward`` and `generate` may call the cache: transformers renamed it in 5.23 or 5.24."""

try:
    import transformers
    from transformers import DynamicCache, GenerationMixin, PreTrainedModel
    from transformers import cache_utils as caches
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
    from transformers.generation import candidate_generator as generators
    from transformers.generation import utils as generation
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
except ImportError as error:  # a version that has renamed or moved one of them
    tried = f"'transformers>={TRIED[0]},<={TRIED[-1]}'"
    raise ImportError(f"{error}; install a version of transformers that was tried: pip install {tried}") from error

SDPA: Callable[..., Any] = sdpa_attention_forward
SDPA_MASK: Callable[..., Any] = ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
"""transformers' own attention, and how it makes masks for it."""
_CACHES_OF_THEIR_OWN = frozenset({"flaubert", "xlm"})
"""Kinds of models whose ``cache`` is none of transformers', or that are given the whole text beside it."""
_SIGNATURES: tuple[tuple[Any, str, set[str]], ...] = (
    (GenerationMixin, "generate", {"assistant_model", "streamer", "synced_gpus", "custom_generate", "kwargs"}),
    (GenerationMixin, "_get_candidate_generator", {"generation_config", "logits_processor", "model_kwargs"}),
    (GenerationMixin, "_supports_default_dynamic_cache", set()),
    (generation, "is_deepspeed_zero3_enabled", set()),
    (generation, "is_fsdp_managed_module", {"module"}),
    (DynamicCache, "__init__", {"config"}),
    (DynamicCache, "crop", set()),
    (DynamicCache, "get_seq_length", set()),
    (DynamicCache, "batch_select_indices", {"indices"}),
    (DynamicLayer, "update", {"key_states", "value_states"}),
    (DynamicLayer, "crop", set()),
    (DynamicLayer, "lazy_initialization", {"key_states", "value_states"}),
    (DynamicLayer, "get_seq_length", set()),
    (generators.CandidateGenerator, "get_candidates", {"input_ids"}),
    (generators.CandidateGenerator, "update_candidate_strategy", {"input_ids", "scores", "num_matches"}),
    (generators.AssistedCandidateGenerator, "_prepare_generation_args", {"min_new_tokens", "max_new_tokens"}),
    (generators.AssistantVocabTranslatorCache, "get_translator", {"assistant_prune_lm_head"}),
)
"""What is called or overridden: its owner, its name, and parameters that it must have."""


# --- names that differ -----------------------------------------------------------------------------------------------


def cache_argument(model: PreTrainedModel) -> str | None:
    """Return what a model's ``forward`` calls the cache, or None where it names none."""
    named = inspect.signature(model.forward).parameters
    return next((name for name in CACHE_NAMES if name in named), None)


def default_cache_argument() -> str:
    names: list[str] = getattr(generation, "ALL_CACHE_NAMES", [*CACHE_NAMES])
    return names[0]


def cache_of(named: Any) -> Any:
    """Return the cache among keyword arguments of a forward pass or of `generate`; None where there is none."""
    return next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)


def needs_model_outputs(generator: generators.CandidateGenerator) -> bool:
    """Whether a candidate generator drafts from what the target's last pass returned; none of 5.0 does."""
    return bool(getattr(generator, "requires_model_outputs", False))


def candidates_of(generator: generators.CandidateGenerator, input_ids: Tensor, **seen: Any) -> Any:
    """Ask a candidate generator, which is told what it names: that of 5.0 whether it is the first time."""
    named = inspect.signature(generator.get_candidates).parameters
    return generator.get_candidates(input_ids, **{name: value for name, value in seen.items() if name in named})


# --- models ----------------------------------------------------------------------------------------------------------


def keeps_recurrent_state(model: PreTrainedModel) -> bool:
    """Whether a model says that it keeps a state that no cache of keys and values can roll back."""
    return bool(getattr(model, "_is_stateful", False))


def takes_dynamic_cache(model: PreTrainedModel) -> bool:
    return bool(model._supports_default_dynamic_cache()) and model.config.model_type not in _CACHES_OF_THEIR_OWN


def counts_positions_itself(model: PreTrainedModel) -> bool:
    """Whether `generate` asks the model itself for positions, which have several dimensions."""
    name = "_prepare_position_ids_for_generation"
    return getattr(type(model), name, None) is not getattr(GenerationMixin, name, None)


def checkpoints_gradients(model: PreTrainedModel) -> bool:
    """Whether a model in training mode reads its layers again for gradients, and so fills no cache."""
    names = ("is_activation_checkpointing", "is_gradient_checkpointing")  # the first is the newer one
    return bool(getattr(model, next(name for name in names if hasattr(type(model), name))))


def attention_of(config: Any) -> str | None:
    name: str | None = config._attn_implementation
    return name


def registered_attentions() -> list[Any]:
    return [*ALL_ATTENTION_FUNCTIONS.values(), *ALL_MASK_ATTENTION_FUNCTIONS.values()]


def reads_attention_from_registry(model: PreTrainedModel) -> bool:
    """Whether a model takes any attention that is registered with transformers."""
    return bool(getattr(model, "_supports_attention_backend", False))


def sdpa_is_own() -> bool:
    """Whether ``sdpa`` still means transformers' own attention, and its masks."""
    return ALL_ATTENTION_FUNCTIONS.get("sdpa") is SDPA and ALL_MASK_ATTENTION_FUNCTIONS.get("sdpa") is SDPA_MASK


def is_spread_over_processes(model: PreTrainedModel) -> bool:
    """Whether a model's weights are spread over processes, as `generate` finds out."""
    return bool(generation.is_deepspeed_zero3_enabled() or generation.is_fsdp_managed_module(model))


# --- caches ----------------------------------------------------------------------------------------------------------


class RecordingWindowLayer(DynamicSlidingWindowLayer):
    """A sliding window that keeps what a rollback needs until `crop`; later versions of transformers have a switch.

    It is made where `DynamicCache` has no ``activate_past_recording``.
    """

    keys: Tensor
    values: Tensor
    cumulative_length: int

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **named: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        self.keys = torch.cat([self.keys, key_states], dim=-2)
        self.values = torch.cat([self.values, value_states], dim=-2)
        visible = self.sliding_window - 1 + key_states.shape[-2]
        return self.keys[:, :, -visible:], self.values[:, :, -visible:]

    def crop(self, max_length: int) -> None:
        """Remove ``-max_length`` tokens, and what lies before the window."""
        self.cumulative_length += max_length
        kept = self.keys.shape[-2] + max_length
        window = slice(max(kept - self.sliding_window + 1, 0), kept)
        self.keys, self.values = self.keys[:, :, window], self.values[:, :, window]


def empty_cache(config: Any, *, record_past: bool) -> DynamicCache:
    """Return transformers' own cache for a model; with ``record_past`` its windows keep what a rollback needs."""
    made = DynamicCache(config=config)
    if record_past and hasattr(made, "activate_past_recording"):
        made.activate_past_recording()
    elif record_past:
        made.layers = [
            RecordingWindowLayer(each.sliding_window) if type(each) is DynamicSlidingWindowLayer else each
            for each in made.layers
        ]
    return made


def remove_last(holder: Any, count: int) -> None:
    """Remove the last tokens of a cache or of a layer; of 0, windows are trimmed to what they need.

    Up to 5.17 a number that is not negative was the length to be left.
    """
    if count or _crops_by_number():
        holder.crop(-count)
        return
    for layer in getattr(holder, "layers", [holder]):
        if isinstance(layer, RecordingWindowLayer):
            layer.crop(0)


@cache
def _crops_by_number() -> bool:
    return "max_length" not in inspect.signature(DynamicLayer.crop).parameters


def use_attention(config: Any, name: str) -> None:
    config._attn_implementation = name


def uncroppable_layers(given: DynamicCache) -> list[str]:
    """Return the names of a filled cache's layers that cannot take tokens back, where transformers says so."""
    return sorted({type(layer).__name__ for layer in given.layers if getattr(layer, "is_croppable", True) is False})


def states_of(layer: Any) -> Iterator[tuple[str, dict[int, Tensor]]]:
    """Yield the states of a layer, by name and then by number, where it has some beside keys and values."""
    kind = getattr(caches, "LinearAttentionCacheLayerMixin", None)
    if kind is not None and isinstance(layer, kind):
        for name in ("conv_states", "recurrent_states"):
            yield name, {i: state for i, state in getattr(layer, name).items() if state is not None}


# --- calls -----------------------------------------------------------------------------------------------------------


def named_arguments_of_generate(model: PreTrainedModel) -> dict[str, Any]:
    """Return the arguments that `generate` was called with by name, if it is what called us; else nothing.

    ``assistant_model``, ``streamer`` and ``synced_gpus`` are parameters of `generate` itself, and none of those reaches
    a callable ``custom_generate``: only its frame still has them. Its other keywords have gone into the generation
    config by then, where they look like the library's defaults.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is code and frame.f_locals.get("self") is model:
            own = {name: frame.f_locals.get(name) for name in ("assistant_model", "streamer", "synced_gpus")}
            return {**frame.f_locals.get("kwargs", {}), **own}
        frame = frame.f_back
    return {}


# --- the check -------------------------------------------------------------------------------------------------------

_numbers_checked: set[type] = set()


def check_forward(model: PreTrainedModel, make_forward: Callable[[], Forward]) -> None:
    """Check a version of transformers that is newer than those in `TRIED`, once for each class of models; warn once.

    Compared are the model's rows of a pass that fills a cache and takes tokens back, which ``make_forward`` makes, and
    those of a pass without a cache.
    """
    version = Version(transformers.__version__)
    if Version(TRIED[0]) <= version <= Version(TRIED[-1]) or type(model) in _numbers_checked:
        return
    problem = _changed_signature() or _changed_forward(model) or _changed_numbers(model, make_forward)
    if problem:
        raise ValueError(
            f"transformers {version} is not one of the versions that were tried ({TRIED[0]} to {TRIED[-1]}), and does "
            f"not pass the check: {problem}; install one that was: pip install "
            f"'transformers>={TRIED[0]},<={TRIED[-1]}'"
        )
    if not _numbers_checked:
        warnings.warn(
            f"transformers {version} is newer than {TRIED[-1]}, the newest version that was tried; it passed the check",
            stacklevel=2,
        )
    _numbers_checked.add(type(model))


def _changed_signature() -> str | None:
    for owner, name, parameters in _SIGNATURES:
        label, function = f"{owner.__name__}.{name}", getattr(owner, name, None)
        if function is None:
            return f"there is no {label}"
        if missing := sorted(parameters - inspect.signature(function).parameters.keys()):
            return f"{label} takes no {missing[0]}"
    return None


def _changed_forward(model: PreTrainedModel) -> str | None:
    if cache_argument(model) is None and "input_ids" in inspect.signature(model.forward).parameters:
        return f"{type(model).__name__}.forward takes no {' or '.join(CACHE_NAMES)}"
    return None


@torch.inference_mode()
def _changed_numbers(model: PreTrainedModel, make_forward: Callable[[], Forward]) -> str | None:
    r"""Compare rows.

    .. math:: \max_{\text{row}} \frac{\lVert a - b \rVert_2}{\lVert b - \bar b \rVert_2}

    with a the row that was read with a cache and b the one without.
    """
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    tokens = torch.arange(1, 15, device=model.device) * max(vocabulary // 17, 1) % vocabulary
    text, wrong = tokens[:12], tokens[12:]
    try:
        forward = make_forward()
        rows = [forward.append(text[:8], 0, 8)]
        forward.append(wrong, 8, 2)
        start = forward.keep(10, 8, [])
        rows += [forward.append(text[start:9], start, 1), forward.append(text[9:], 9, 3)]
        positions = {}
        if "position_ids" in inspect.signature(model.forward).parameters and not counts_positions_itself(model):
            positions["position_ids"] = torch.arange(12, device=model.device)[None]
        expected = model(input_ids=text[None], use_cache=False, **positions).logits[0]
    except Exception as error:  # whatever has changed
        return f"a block of tokens cannot be read and taken back ({type(error).__name__}: {error})"
    difference, allowed = worst_difference(torch.cat(rows), expected), allowed_difference(model.dtype)
    if difference <= allowed:
        return None
    return f"rows read with a cache differ from rows read without by {difference:.1e}, where {allowed:.1e} is allowed"


def worst_difference(rows: Tensor, expected: Tensor) -> float:
    """Compare rows, as `check_forward` does; infinite and missing numbers are equal where both have them.

    Example:
        >>> worst_difference(torch.tensor([[1.0, 3.0, 5.0]]), torch.tensor([[1.0, 3.0, 5.0]]))
        0.0
    """
    finite = expected.isfinite()
    if not torch.equal(rows.isfinite(), finite):
        return math.inf
    ours, theirs = (given.double().where(finite, 0.0) for given in (rows, expected))
    spread = (theirs - theirs.mean(-1, keepdim=True)).norm(dim=-1)
    return float(((ours - theirs).norm(dim=-1) / spread.clamp_min(torch.finfo(torch.float64).tiny)).max())


def allowed_difference(dtype: torch.dtype) -> float:
    """Return the square root of a dtype's relative precision: two passes must agree in half of its digits.

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
