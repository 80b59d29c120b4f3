"""Whether what trains is installed; imports nothing that needs it."""

from __future__ import annotations

from cactus_decoding.arguments.extras import needing


def check_installed() -> None:
    """Raise `ValueError` where accelerate, which transformers' trainer needs, is missing, with what to run."""
    with needing("training a draft needs accelerate", "train"):
        import accelerate  # noqa: F401
