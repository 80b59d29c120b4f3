"""Models by name: each engine says which names it reads, and loads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cactus_decoding.core.mistakes import short_repr, suggestion

if TYPE_CHECKING:
    import torch

    from cactus_decoding.core.models.base import BaseCachedModel
    from cactus_decoding.core.models.tokenizers import Tokenizer

GROUP = "cactus_decoding.engines"  # the entry points by which engines register, this package's own among them
_LONGEST = 300


class Engine(Protocol):
    """Reads models.

    ``suffix`` is how the names of its files end, in small letters; it is empty for the engine of folders and of the
    hub. ``rows_on_cpu`` says whether its logits are on the CPU, whatever computes them.
    """

    suffix: str
    rows_on_cpu: bool

    @property
    def drafters(self) -> Mapping[str, type[Any]]:
        """Drafters that only its models have, by name; each class has a method ``drafter`` that fits it to a target."""

    def check_name(self, role: str, name: str | Path, words: Iterable[str]) -> None:
        """Raise `ValueError` for what cannot be a model's name, without asking a hub or reading weights."""

    def only_cached(self, role: str, name: str | Path) -> bool:
        """Whether the hub cannot be asked, so that what was fetched before has to do."""

    def load_tokenizer(self, role: str, name: str | Path, *, local: bool = False) -> Tokenizer:
        """Load a tokenizer; with ``local`` only one that was fetched before."""

    def load_cached(
        self,
        role: str,
        name: str | Path,
        dtype: str | torch.dtype,
        device: torch.device,
        *,
        local: bool = False,
    ) -> BaseCachedModel: ...

    def with_cache(self, model: Any) -> BaseCachedModel: ...


@cache
def engines() -> tuple[Engine, ...]:
    """The engine of folders and of the hub comes last."""
    found: list[Engine] = [point.load()() for point in entry_points(group=GROUP)]
    return tuple(sorted(found, key=lambda each: (each.suffix == "", each.suffix)))


def engine_of(name: str | Path) -> Engine:
    """Text may give settings after a file, such as ``model.gguf:threads=2``."""
    *of_files, of_folders = engines()
    text = str(name).lower()
    for engine in of_files:
        if (text.endswith(engine.suffix) or f"{engine.suffix}:" in text) and not Path(name).is_dir():
            return engine
    return of_folders


def check_model_name(role: str, name: str | Path, words: Iterable[str] = ()) -> None:
    """Raise `ValueError` for what is no existing file or folder and cannot be a name on the hub; asks nobody."""
    if not isinstance(name, (str, Path)):
        raise TypeError(f"{role} must be a path or a name, but is {short_repr(name)}")
    if name == "":
        raise ValueError(f"cannot load the {role}: its name is empty")
    engine_of(name).check_name(role, name, words)


def similar_path(path: Path) -> str:
    siblings: list[str] = []
    with suppress(OSError):
        siblings = [each.name for each in path.parent.iterdir() if each.is_dir() or each.suffix == ".gguf"]
    return suggestion(path.name, siblings)


def only_cached(role: str, name: str | Path) -> bool:
    """Ask the hub once for a name; return whether it cannot be asked, so that what was fetched before has to do."""
    return engine_of(name).only_cached(role, name)


def load_tokenizer(role: str, name: str | Path, *, local: bool = False) -> Tokenizer:
    return engine_of(name).load_tokenizer(role, name, local=local)


def load_cached(
    role: str,
    name: str | Path,
    dtype: str | torch.dtype,
    device: torch.device,
    *,
    local: bool = False,
) -> BaseCachedModel:
    return engine_of(name).load_cached(role, name, dtype, device, local=local)


def with_cache(model: Any) -> BaseCachedModel:
    from cactus_decoding.core.models.base import BaseCachedModel

    return model if isinstance(model, BaseCachedModel) else engines()[-1].with_cache(model)


def sentence_of(error: Exception) -> str:
    """Return what an error says, on one line and not cut within a sentence."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
    if lines and lines[0].endswith((".", "!")):
        text = lines[0]
    else:
        text = " ".join(" ".join(lines).split())
        if len(text) > _LONGEST:
            text = text[:_LONGEST].rpartition(" ")[0] + " …"
    known = isinstance(error, (OSError, ValueError, RuntimeError, ImportError)) and text
    return text if known else f"{type(error).__name__}: {text}".rstrip(": ")
