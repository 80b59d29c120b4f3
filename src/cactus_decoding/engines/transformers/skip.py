"""A target without some of its layers, or parts of layers, as its draft; or its first layers alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from cactus_decoding.core.checks import short_repr
from cactus_decoding.core.declared import Setting, check_fields, fields_of
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.spelling import spell
from cactus_decoding.core.types import Drafter
from cactus_decoding.engines.transformers.skip_choice import choose
from cactus_decoding.engines.transformers.sublayers import KINDS, Part, first_layers, layers_of, parts_of, without_parts

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class EarlyExit:
    """Drafts with the first layers of the target, followed by its last normalisation and its head.

    Nothing is trained, and no weight is stored twice. The draft keeps keys and values of its own, so the target reads
    accepted tokens again with all of its layers. `Skip` leaves out any layers, or parts of them.

    Example:
        >>> EarlyExit(3).layers
        3
    """

    layers: Annotated[int, Setting("of the target, from the first", ge=1)]

    def __post_init__(self) -> None:
        check_fields(self)

    def drafter(self, target: PreTrainedModel, prompts: Callable[[], list[list[int]]] | None = None) -> Drafter:
        return ModelDrafter(self.of(target))

    def of(self, target: PreTrainedModel) -> PreTrainedModel:
        total = len(layers_of(target))
        if self.layers >= total:
            raise ValueError(f"an early exit must be before layer {total}, the last, but is at {self.layers}")
        draft = first_layers(target, self.layers)
        draft.name_or_path = spell("early_exit", self)
        return draft


_LAYERS = re.compile(r"(all|\d{1,4}(-\d{1,4})?(\.\d{1,4}(-\d{1,4})?)*)?")


@dataclass(frozen=True)
class Skip:
    """Drafts with the target without some layers, or without the attention, the recurrent part or the MLP of some.

    Nothing is trained, and no weight is stored twice. The draft keeps keys and values of its own, so the target reads
    accepted tokens again with all of its parts. Layers count from 0 and are separated by dots; ``4-7`` are 4, 5, 6 and
    7, and ``all`` is every layer that has such a part.

    Where nothing is named, `choose` finds what to skip when the draft is loaded, and keeps it for the next time.

    Sources: KnapSpec (arXiv 2602.20217), CAS-Spec (arXiv 2510.26843), Draft & Verify (arXiv 2309.08168).

    Example:
        >>> str(Skip(layers="3-5", attention="7.9"))
        'skip:layers=3-5,attention=7.9'
    """

    layers: Annotated[str, Setting("skipped whole, such as 3.5-7", metavar="LAYERS")] = ""
    attention: Annotated[str, Setting("layers without their attention", metavar="LAYERS")] = ""
    # linear attention and Mamba, of hybrid models
    recurrent: Annotated[str, Setting("layers without their recurrent part", metavar="LAYERS")] = ""
    mlp: Annotated[str, Setting("layers without their MLP", metavar="LAYERS")] = ""

    def __post_init__(self) -> None:
        check_fields(self)
        for each in fields_of(type(self)):
            text = getattr(self, each.name)
            ranges = [] if text == "all" else text.split(".")
            if not _LAYERS.fullmatch(text) or not all(_numbers(part) for part in ranges if part):
                raise ValueError(f"{each.name} must be layers such as 3.5-7, or all, but is {short_repr(text)}")

    def __str__(self) -> str:
        return spell("skip", self)

    @classmethod
    def of_parts(cls, skipped: Collection[Part], parts: Iterable[Part]) -> Self:
        """Return what skips some of a model's parts; layers of which all parts are skipped are named as layers."""
        partly = {part.layer for part in parts if part not in skipped}
        whole = {part.layer for part in skipped} - partly
        named = {"layers": _spelled(whole)}
        for kind in ("attention", "recurrent", "mlp"):
            named[kind] = _spelled({part.layer for part in skipped if part.kind == kind} - whole)
        return cls(**named)

    def drafter(self, target: Any, prompts: Callable[[], list[list[int]]] | None = None) -> Drafter:
        """Return the drafter of a target, whose name is its spelling with all that it skips."""
        if self != Skip():
            return ModelDrafter(self.of(target))
        parts = parts_of(target)
        if prompts is None:
            raise ValueError("skip needs prompts to choose what to skip: name it, as in skip:layers=3-5")
        return ModelDrafter(self.of_parts(choose(target, prompts()), parts).of(target))

    def of(self, target: PreTrainedModel) -> PreTrainedModel:
        draft = without_parts(target, self.parts(target))
        draft.name_or_path = str(self)
        return draft

    def parts(self, target: PreTrainedModel) -> set[Part]:
        """Return what is skipped of a target; raise `ValueError` for layers that it has not."""
        of_target, total, skipped = parts_of(target), len(layers_of(target)), set[Part]()
        for name in ("layers", *KINDS):
            text: str = getattr(self, name)
            own = [part for part in of_target if name in ("layers", part.kind)]
            chosen = {part.layer for part in own} if text == "all" else set(_numbers(text))
            for layer in sorted(chosen):
                found = [part for part in own if part.layer == layer]
                if not found:
                    lacks = f"no {name} there" if layer < total else f"{total} layers"
                    raise ValueError(f"cannot skip {name}={layer}: the target has {lacks}")
                skipped.update(found)
        return skipped


def _numbers(text: str) -> list[int]:
    ranges = [part.partition("-") for part in text.split(".") if part]
    return [i for first, _, last in ranges for i in range(int(first), int(last or first) + 1)]


def _spelled(layers: Collection[int]) -> str:
    """Return numbers of layers as text, three or more neighbours as a range.

    >>> _spelled({1, 2, 5, 6, 7})
    '1.2.5-7'
    """
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ".".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ".".join(map(str, run)) for run in runs)
