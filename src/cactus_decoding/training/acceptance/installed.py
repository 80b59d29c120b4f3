"""Whether what trains is installed; imports nothing that needs it."""

from __future__ import annotations

from cactus_decoding.arguments.extras import install


def check_installed() -> None:
    """Raise `ValueError` where accelerate, which transformers' trainer needs, is missing, with what to run."""
    try:
        import accelerate  # noqa: F401
    except ImportError:
        raise ValueError(f"training a draft needs accelerate: run {install('train')}") from None
