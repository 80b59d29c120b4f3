"""The bundled model pair: a target and a draft for grade-school word problems, trained by this repository."""

from __future__ import annotations

from pathlib import Path

from cactus_decoding.arguments.checks import check_choice

ROLES = ("target", "draft")


def path(role: str) -> Path:
    """Return the folder of the bundled ``target`` or ``draft``, in Hugging Face format.

    Example:
        >>> (path("target") / "config.json").exists()
        True
    """
    check_choice("role", role, ROLES)
    return Path(__file__).parent / "word_problems" / role
