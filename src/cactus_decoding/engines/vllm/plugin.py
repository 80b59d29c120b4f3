"""What vLLM calls in each of its processes, by the entry point ``vllm.general_plugins``."""

from __future__ import annotations

import os
from pathlib import Path

from cactus_decoding.engines.vllm.seams import RECORDED, closest_version, differences

ANY_VERSION = "CACTUS_VLLM_ANY_VERSION"


def register() -> None:
    """Install the patches; calling it again changes nothing.

    Raises `RuntimeError` for a vLLM version that the patches were not checked against, unless the environment variable
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
    """Raise `RuntimeError` unless the patches were checked against a vLLM version.

    With ``any_version`` an unknown version passes too, unless the sources in ``package`` differ where the patches are.
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
