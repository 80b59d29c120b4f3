"""What may be the name of a model of transformers: a folder that exists, or a name on the hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cactus_decoding.core.mistakes import suggestion
from cactus_decoding.core.models.loading import similar_path


def check_folder_or_hub_name(role: str, name: str | Path, words: Iterable[str]) -> None:
    """Raise `ValueError` for what is neither a folder that exists nor may be a name on the hub; asks nobody.

    As text a name on the hub is ``owner/name``; old ones have no owner, such as ``gpt2``. One without an owner that is
    close to one of some other words is refused too.
    """
    path, text = Path(name), str(name)
    if path.is_dir():
        if not any((path / file).exists() for file in ("config.json", "adapter_config.json")):
            raise ValueError(f"cannot load the {role}: the folder {text!r} holds no model (there is no config.json)")
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


def _may_be_on_hub(name: str) -> bool:
    from huggingface_hub.errors import HFValidationError

    try:
        is_cached(name)  # which checks the name first
    except HFValidationError:
        return False
    return True


def is_cached(name: str) -> bool:
    """Say whether a model of the hub was fetched before."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)
