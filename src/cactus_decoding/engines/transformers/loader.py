"""transformers as an engine: models and tokenizers in a folder or on the hub, which is asked once for a name."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.models.loading import ModelLoader, fastest_dtype, sentence_of, similar_path

if TYPE_CHECKING:  # torch is imported with the first model: whoever only checks a name must not wait for it
    import torch
    from transformers import PreTrainedModel

    from cactus_decoding.core.models.base import BaseCachedModel
    from cactus_decoding.core.models.tokenizers import Tokenizer

HUB_SECONDS = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 5)
"""So long an answer of the hub is waited for, before anything is fetched."""
_SMALL = 2**18  # entries of a matrix; beyond, products of several rows are no faster
logger = logging.getLogger(__name__)
"""Tells in which precision weights are read, where that is not the one they are stored in."""


class TransformersLoader(ModelLoader):
    suffix = ""
    rows_on_cpu = False

    @property
    def drafters(self) -> Mapping[str, type[Any]]:
        from cactus_decoding.engines.transformers.early_exit import EarlyExit

        return {"early_exit": EarlyExit}

    def check_name(self, role: str, name: str | Path, words: Iterable[str]) -> None:
        """Raise `ValueError` for what is neither a folder that exists nor may be a name on the hub; asks nobody.

        As text a name on the hub is ``owner/name``; old ones have no owner, such as ``gpt2``. One without an owner that
        is close to one of some other words is refused too.
        """
        path, text = Path(name), str(name)
        if path.is_dir():
            if not any((path / file).exists() for file in ("config.json", "adapter_config.json")):
                raise ValueError(
                    f"cannot load the {role}: the folder {text!r} holds no model (there is no config.json)"
                )
            return
        if path.exists():
            raise ValueError(f"cannot load the {role}: {text!r} is a file, but a model is a folder or a GGUF file")
        if isinstance(name, Path) or text.startswith(("/", ".", "~")) or text.count("/") > 1:
            meant = similar_path(path)
            if not meant and isinstance(name, Path) and _may_be_on_hub(text):
                meant = "; give a hub name as text"
            raise ValueError(f"cannot load the {role}: there is no folder {text!r}{meant}")
        close = "" if "/" in text else suggestion(text.partition(":")[0], words)
        if close or not _may_be_on_hub(text):
            raise ValueError(f"cannot load the {role}: {text!r} is no folder and no model's name{close}")

    def only_cached(self, role: str, name: str | Path) -> bool:
        """Ask the hub once for a name; return whether it cannot be asked and what was fetched before has to do."""
        if Path(name).exists():
            return False
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

        found: list[Exception | None] = []

        def ask() -> None:
            try:
                HfApi().model_info(str(name), timeout=HUB_SECONDS)
                found.append(None)
            except Exception as error:
                found.append(error)

        asking = Thread(target=ask, daemon=True)  # looking up the hub's address has no limit of its own
        asking.start()
        asking.join(HUB_SECONDS + 0.5)
        error = found[0] if found else TimeoutError()
        if isinstance(error, RepositoryNotFoundError):
            raise ValueError(f"cannot load the {role}: the hub has no model {str(name)!r}, or it is private") from None
        if error is None or (isinstance(error, HfHubHTTPError) and not isinstance(error, OfflineModeIsEnabled)):
            return False  # what it answers to other requests, it says to them
        if is_cached(str(name)):
            return True
        if isinstance(error, OfflineModeIsEnabled):
            why = "the hub is not asked in offline mode (HF_HUB_OFFLINE)"
        else:
            why = f"the hub cannot be reached within {HUB_SECONDS:g} seconds"
        raise ValueError(f"cannot load the {role}: {str(name)!r} was not fetched before, and {why}") from None

    def load_tokenizer(self, role: str, name: str | Path, *, local: bool = False) -> Tokenizer:
        """Load a tokenizer, without running code that comes with it; raise `ValueError` where it cannot be."""
        from transformers import AutoTokenizer

        try:
            found: Tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False, local_files_only=local)
        except Exception as error:  # whatever a broken file provokes
            raise ValueError(f"cannot load a tokenizer for the {role} {str(name)!r}: {sentence_of(error)}") from error
        return found

    def load_cached(
        self, role: str, name: str | Path, dtype: str | torch.dtype, device: torch.device, *, local: bool = False
    ) -> BaseCachedModel:
        return self.with_cache(load_model(role, name, dtype, device, local=local))

    def with_cache(self, model: Any) -> BaseCachedModel:
        from cactus_decoding.engines.transformers.cached_model import CachedModel

        return CachedModel(model)


def _may_be_on_hub(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError

    try:
        is_cached(name)  # which checks the name first
    except HFValidationError:
        return False
    return True


def is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def load_model(
    role: str, name: str | Path, dtype: str | torch.dtype, device: torch.device, *, local: bool = False
) -> PreTrainedModel:
    """Load a causal language model with all of its weights; raise `ValueError` where it cannot be.

    With the dtype ``auto`` they are in what they are stored in, or in what is faster here: see `fastest_dtype`.
    A draft whose configuration lists a ``draft_vocabulary`` proposes from that.
    """
    from transformers import AutoModelForCausalLM

    from cactus_decoding.engines.transformers.partial_head import CONFIGURED, propose_from

    faster = faster_dtype(name, device, local=local) if dtype == "auto" else None
    try:
        model, about = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=faster or dtype,
            trust_remote_code=False,
            local_files_only=local,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # or the reason would stand in a log that nobody sees
        )
    except Exception as error:
        raise ValueError(f"cannot load the {role} {str(name)!r}: {sentence_of(error)}") from error
    if mismatched := sorted(about["mismatched_keys"]):  # some versions give a set, in any order
        key, given, wanted = mismatched[0]
        shapes = f"{list(given)}, where its config.json asks for {list(wanted)}"
        raise ValueError(f"cannot load the {role} {str(name)!r}: its weight {key} is {shapes}")
    if missing := sorted(about["missing_keys"]):
        raise ValueError(f"cannot load the {role} {str(name)!r}: it lacks {len(missing)} weights, such as {missing[0]}")
    if faster is not None:
        name_of = str(faster).removeprefix("torch.")
        logger.info("the %s is read in %s, which is faster on this processor than what it is stored in", role, name_of)
    model = model.to(device).eval()
    lay_out_for_small_products(model)
    if role != "target" and (part := getattr(model.config, CONFIGURED, None)):
        propose_from(model, part)
    return model


def lay_out_for_small_products(model: PreTrainedModel) -> None:
    """Store a CPU model's small float32 matrices column by column, in place: the same values, a fifth faster to use.

    BLAS reads matrices that are stored ``[in, out]`` faster in products of a few rows. Shapes stay as they are, only
    strides change, and no memory is added. Matrices that are shared with the embedding stay row by row for it.
    """
    import torch

    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for module in model.modules():
        if type(module) is torch.nn.Linear and id(module.weight) not in embeddings:
            weight = module.weight
            small = weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() <= _SMALL
            # of one row or column the transpose is the same memory already
            if small and weight.is_contiguous() and min(weight.shape) > 1:
                columns = weight.data.t().contiguous()
                # back into its own memory: new blocks would leave the old ones as holes in the heap
                weight.data = weight.data.view(columns.shape).copy_(columns).t()


def stored_dtype(name: str | Path, *, local: bool = False) -> torch.dtype | None:
    from transformers import AutoConfig

    found: torch.dtype | None = AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=local).dtype
    return found


def faster_dtype(
    name: str | Path, device: torch.device, *, local: bool = False, stored: torch.dtype | None = None
) -> torch.dtype | None:
    """Return a precision in which a model runs faster than in the one it is stored in; None where there is none."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with suppress(Exception):  # whatever a broken file provokes
        config = AutoConfig.from_pretrained(name, trust_remote_code=False, local_files_only=local)
        stored = stored or config.dtype
        if stored is None or getattr(config, "quantization_config", None):
            return None
        if fastest_dtype(stored, 0, device, memory=1.0) == stored:
            return None  # whatever its size
        with torch.device("meta"):
            num_weights = AutoModelForCausalLM.from_config(config).num_parameters()
        found = fastest_dtype(stored, num_weights, device)
        return None if found == stored else found
    return None
