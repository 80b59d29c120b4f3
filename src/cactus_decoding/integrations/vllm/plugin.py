"""What vLLM calls in each of its processes, by the entry point ``vllm.general_plugins``."""

from __future__ import annotations

import os
import re

TESTED = ((0, 32),)
"""Versions, major and minor, whose internals the seams were checked against."""
ANY_VERSION = "CACTUS_VLLM_ANY_VERSION"


def register() -> None:
    """Install the seams; calling it again changes nothing.

    Raises:
        RuntimeError: for a vLLM version that the seams were not checked against, unless the environment variable
            ``CACTUS_VLLM_ANY_VERSION`` is 1.
    """
    import vllm

    check_version(vllm.__version__, os.environ.get(ANY_VERSION) == "1")
    from cactus_decoding.integrations.vllm import frontend, v1, v2

    frontend.install()
    v1.install()
    v2.install()


def check_version(version: str, any_version: bool = False) -> None:
    """Raise unless the seams were checked against a vLLM version.

    Example:
        >>> check_version("0.32.1")
        >>> check_version("0.99.0", any_version=True)
        >>> check_version("0.99.0")
        Traceback (most recent call last):
        RuntimeError: cactus-decoding works with vLLM 0.32, but 0.99.0 is installed. ...
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if any_version or (found is not None and tuple(map(int, found.groups())) in TESTED):
        return
    known = ", ".join(f"{major}.{minor}" for major, minor in TESTED)
    raise RuntimeError(
        f"cactus-decoding works with vLLM {known}, but {version} is installed. Set {ANY_VERSION}=1 to try it with this "
        "version all the same, VLLM_PLUGINS='' to run vLLM without plug-ins, or install another cactus-decoding."
    )
