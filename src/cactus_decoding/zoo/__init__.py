"""The bundled models: a target and its drafts for grade-school word problems, trained by this repository."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

BUNDLED = "bundled"  # the name of the bundled target, and of its default draft
DRAFTS = ("worded", "draft")  # the default one first
ROLES = ("target", *DRAFTS)

# Settings for the bundled pair without truncation, as flat names of a request. `studies/relaxing/run.py` chooses them
# on validation problems, never on held-out ones: the width and the draft lengths with the best tokens per step and time
# per answer among those whose score is not below lossless.

# at its best draft length
LOSSLESS: dict[str, Any] = {"rule": "lossless", "num_speculative_tokens": 8}
# faster where no answer depends on it, at its best draft length
RELAXED: dict[str, Any] = {"rule": "clamped:width=2.0", "protect": "digits", "num_speculative_tokens": 10}


def path(role: str) -> Path:
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, but is {role!r}")
    return Path(__file__).parent / "word_problems" / role


def full_name(draft: str) -> str:
    """Return a bundled draft's full name, or any other draft's as it is; `ValueError` for an unknown bundled draft.

    >>> full_name("bundled"), full_name("bundled:draft"), full_name("owner/name")
    ('bundled:worded', 'bundled:draft', 'owner/name')
    """
    if draft == BUNDLED:
        return f"{BUNDLED}:{DRAFTS[0]}"
    if draft.startswith(f"{BUNDLED}:"):
        known = [f"{BUNDLED}:{name}" for name in DRAFTS]
        if draft not in known:
            close = get_close_matches(draft, known, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"a bundled draft must be one of {', '.join(known)}, but is {draft!r}{meant}")
    return draft


def draft_path(draft: str | Path) -> Path | None:
    name = full_name(draft) if isinstance(draft, str) else ""
    return path(name.partition(":")[2]) if name.startswith(f"{BUNDLED}:") else None
