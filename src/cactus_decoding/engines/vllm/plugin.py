"""What vLLM calls in each of its processes, by the entry point ``vllm.general_plugins``."""

from __future__ import annotations

import os
from pathlib import Path

from cactus_decoding.engines.vllm.seams import RECORDED, closest_version, differences

ANY_VERSION = "CACTUS_VLLM_ANY_VERSION"


def register() -> None:
    """Install the seams; calling it again changes nothing.

    Raises `RuntimeError` for a vLLM version that the seams were not checked against, unless the environment variable
    ``CACTUS_VLLM_ANY_VERSION`` is 1.
    """
    import vllm

    check_version(vllm.__version__, os.environ.get(ANY_VERSION) == "1", Path(vllm.__file__).parent)
    from cactus_decoding.engines.vllm import frontend, reports, v1, v2

    frontend.install()
    reports.install()
    v1.install()
    v2.install()


def check_version(version: str, any_version: bool = False, package: Path | None = None) -> None:
    """Raise unless the seams were checked against a vLLM version, or are in any other as they were.

    A package folder is looked at where another version may be tried.
    Raises `RuntimeError` for an unknown version that is not to be tried, or whose sources differ where the seams are.

    Example:
        >>> check_version("0.32.1")
        >>> check_version("0.33.0")
        >>> check_version("0.99.0", any_version=True)
        >>> check_version("0.99.0")
        Traceback (most recent call last):
        RuntimeError: cactus-decoding works with vLLM 0.32, 0.33, but 0.99.0 is installed. ...
    """
    known = closest_version(version)
    if f"{version}.".startswith(f"{known}."):
        return
    if not any_version:
        raise RuntimeError(
            f"cactus-decoding works with vLLM {', '.join(RECORDED)}, but {version} is installed. Set {ANY_VERSION}=1 "
            "to try it with this version all the same, VLLM_PLUGINS='' to run vLLM without plug-ins, or install "
            "another cactus-decoding."
        )
    if found := differences(package, known) if package is not None else []:
        raise RuntimeError(
            f"cactus-decoding cannot work with vLLM {version}, whose sources differ from those of {known} where it "
            f"hooks in: {'; '.join(found)}. Set VLLM_PLUGINS='' to run vLLM without plug-ins."
        )
