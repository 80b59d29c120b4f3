"""The bundled models: a target and its drafts for grade-school word problems, trained by this repository."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

BUNDLED = "bundled"  # the name of the bundled target, and of its default draft
DRAFTS = ("worded", "draft")  # the default one first
ROLES = ("target", *DRAFTS)


def path(role: str) -> Path:
    """Return the folder of the bundled ``target`` or of one of its drafts, in Hugging Face format."""
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
    """Return the folder of a bundled draft by its name, or None for any other draft; errors as for `full_name`."""
    name = full_name(draft) if isinstance(draft, str) else ""
    return path(name.partition(":")[2]) if name.startswith(f"{BUNDLED}:") else None


def importance_path(draft: str | Path) -> Path | None:
    """Return the file of importance that was learned with a bundled draft, by its name; None for any other text.

    >>> importance_path("bundled:worded").name, importance_path("importance.safetensors")
    ('worded-importance.safetensors', None)
    """
    folder = draft_path(draft)  # beside the folder: engines read every safetensors file in a model's
    return None if folder is None else folder.with_name(f"{folder.name}-importance.safetensors")
