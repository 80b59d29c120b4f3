"""Drafters by name, and their text spelling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cactus_decoding import zoo
from cactus_decoding.arguments.contributed import Contributed
from cactus_decoding.arguments.spelling import parse
from cactus_decoding.models.names import check_model_name
from cactus_decoding.zoo import BUNDLED

if TYPE_CHECKING:
    from cactus_decoding.drafting.early_exit import EarlyExit
    from cactus_decoding.drafting.lookup import LookUpDrafter

DRAFTERS = Contributed[type["LookUpDrafter | EarlyExit"]](
    {
        "suffix": "cactus_decoding.drafting.suffix:SuffixDrafter",
        "ngram": "cactus_decoding.drafting.ngram:NgramDrafter",
        "early_exit": "cactus_decoding.drafting.early_exit:EarlyExit",
    }
)
"""Drafters that need no weights of their own, by name: each has a method ``drafter`` that fits it to a target."""
LOOK_UPS = ("suffix", "ngram")
"""Those that copy from the text, which go with any target."""
LOOK_UP = LOOK_UPS[0]
"""What drafts for a target that is named alone."""


def is_drafter(text: str) -> bool:
    """Say whether a text spells a drafter, rightly or not; if not it names a model."""
    return text.strip().partition(":")[0] in DRAFTERS


def parse_drafter(text: str) -> LookUpDrafter | EarlyExit | None:
    """Return the drafter of a spelling such as ``ngram`` or ``early_exit:layers=3``; None where it names a model.

    Raises `ValueError` for an unknown parameter, one that is missing, or a value out of range.

    Example:
        >>> parse_drafter("early_exit:layers=3"), parse_drafter("path/to/model")
        (EarlyExit(layers=3), None)
    """
    return parse("draft", text, DRAFTERS) if is_drafter(text) else None


def check_names(target: str | Path | None, *drafts: str | Path | None) -> None:
    """Raise `ValueError` for a target or a draft that can be no model; reads no weights and asks no hub.

    It does without torch, so that commands can ask it before all else.
    """
    if isinstance(target, str) and target.partition(":")[0] in DRAFTERS:
        raise ValueError(f"cannot load the target: {target!r} is a draft; give --draft {target}, and a model as target")
    if target is not None and target != BUNDLED:
        check_model_name("target", target, [BUNDLED, *DRAFTERS])
    for draft in drafts:
        if draft is None:
            continue
        if zoo.draft_path(draft) is not None:
            if target not in (None, BUNDLED):
                raise ValueError(f"a bundled draft goes with the bundled target, but not with {str(target)!r}")
        elif isinstance(draft, str) and is_drafter(draft):
            parse_drafter(draft)
        else:
            check_model_name("draft", draft, [BUNDLED, *DRAFTERS])


def check_keeps_nothing(text: str) -> None:
    """Raise `ValueError` for a drafter that would show a user of a server what others were answered.

    Example:
        >>> check_keeps_nothing("suffix:earlier=1000")
        Traceback (most recent call last):
        ValueError: earlier shows users each other's answers, so no server takes it: give 'suffix' without it
    """
    if getattr(parse_drafter(text), "earlier", 0):
        raise ValueError("earlier shows users each other's answers, so no server takes it: give 'suffix' without it")
