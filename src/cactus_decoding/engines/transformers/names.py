"""What may be a model's name: checked without torch, so that a mistyped one does not wait for it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cactus_decoding.core.values import shown, suggestion
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf


def check_model_name(role: str, name: str | Path, words: Iterable[str] = ()) -> None:
    """Raise `ValueError` for what is neither a folder that exists nor may be a name on the hub; asks nobody.

    A path, or as text a name on the hub such as ``owner/name``; old ones have no owner, such as ``gpt2``. One without
    an owner that is close to one of some other words is refused too.
    Raises `TypeError` for what is neither a path nor text, `ValueError` for all else.

    Example:
        >>> check_model_name("draft", "ngrm", ["ngram"])
        Traceback (most recent call last):
        ValueError: cannot load the draft: 'ngrm' is no folder and no model's name; did you mean 'ngram'?
    """
    if not isinstance(name, (str, Path)):
        raise TypeError(f"{role} must be a path or a name, but is {shown(name)}")
    if name == "":
        raise ValueError(f"cannot load the {role}: its name is empty")
    path, text = Path(name), str(name)
    if (gguf := parse_gguf(name)) is not None and not path.is_dir():
        if not gguf.path.is_file():
            raise ValueError(f"cannot load the {role}: there is no file {str(gguf.path)!r}{_meant(gguf.path)}")
        return
    if path.is_dir():
        if not any((path / file).exists() for file in ("config.json", "adapter_config.json")):
            raise ValueError(f"cannot load the {role}: the folder {text!r} holds no model (there is no config.json)")
        return
    if path.exists():
        raise ValueError(f"cannot load the {role}: {text!r} is a file, but a model is a folder or a GGUF file")
    if isinstance(name, Path) or text.startswith(("/", ".", "~")) or text.count("/") > 1:
        meant = _meant(path)
        if not meant and isinstance(name, Path) and _may_be_on_hub(text):
            meant = "; give a hub name as text"
        raise ValueError(f"cannot load the {role}: there is no folder {text!r}{meant}")
    close = "" if "/" in text else suggestion(text.partition(":")[0], words)
    if close or not _may_be_on_hub(text):
        raise ValueError(f"cannot load the {role}: {text!r} is no folder and no model's name{close}")


def _meant(path: Path) -> str:
    """Return which model's name in the same folder is close to that of a missing one, as `suggestion` does."""
    siblings: list[str] = []
    with suppress(OSError):
        siblings = [each.name for each in path.parent.iterdir() if each.is_dir() or each.suffix == ".gguf"]
    return suggestion(path.name, siblings)


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
