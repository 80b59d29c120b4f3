"""What vLLM calls in each of its processes (entry point ``vllm.general_plugins``), and the patch of its front end."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from cactus_decoding.engines.openai.keys import RULE_KEY
from cactus_decoding.engines.vllm import reports, scheduling, v1, v2
from cactus_decoding.engines.vllm.extra_args import (
    REQUEST_KEYS,
    ServerConfig,
    check_request_texts,
    check_texts,
    is_greedy,
    server_vocabulary,
)
from cactus_decoding.engines.vllm.patches import RECORDED, closest_version, differences, replace

ANY_VERSION = "CACTUS_VLLM_ANY_VERSION"


def register() -> None:
    import vllm

    check_vllm_version(vllm.__version__, os.environ.get(ANY_VERSION) == "1", Path(vllm.__file__).parent)
    from vllm.v1.engine.input_processor import InputProcessor

    replace(InputProcessor, "_build_logits_processors_params_validator", with_check)
    reports.install()
    scheduling.install()
    v1.install()
    v2.install()


def check_vllm_version(version: str, any_version: bool = False, package: Path | None = None) -> None:
    """Check a version of vLLM that the patches were not tried on; warn where it is let through.

    Names and signatures are compared, with the sources in ``package``. Numbers cannot be: they take a model on the
    device, and a plug-in is loaded before either is there. So another version also needs ``any_version``.
    """
    known = closest_version(version)
    if f"{version}.".startswith(f"{known}."):
        return
    tried = [*RECORDED]
    first = f"vLLM {version} is not one of the versions that were tried ({', '.join(tried)})"
    lowest, newest = tried[0], Version(tried[-1])
    instead = (
        f"install one that was: pip install 'vllm>={lowest},<{newest.major}.{newest.minor + 1}'; "
        "or set VLLM_PLUGINS='' to run vLLM without plug-ins"
    )
    if found := differences(package, known) if package is not None else []:
        raise RuntimeError(f"{first}, and does not pass the check: {'; '.join(found)}; {instead}")
    if not any_version:
        raise RuntimeError(
            f"{first}; it has the names and signatures of {known}, but its numbers can be checked by running it only: "
            f"set {ANY_VERSION}=1 to use it all the same, or {instead}"
        )
    warnings.warn(f"{first}; names and signatures passed the check, numbers were not compared", stacklevel=2)


def with_check(stock: Callable[[Any], Callable[[Any], None]]) -> Callable[[Any], Callable[[Any], None]]:
    """Refuse bad values before they reach a worker: the server's own when it starts, and each request's."""

    def build(processor: Any) -> Callable[[Any], None]:
        config = ServerConfig.of(processor.vllm_config)
        vocabulary = cache(lambda: server_vocabulary(processor.vllm_config))  # where nobody asks, nobody waits for it
        if config.default is not None:  # also without a rule, for requests that bring one
            check_texts(config.default.policy, vocabulary)
        check = stock(processor)

        def validate(params: Any) -> None:
            from vllm.exceptions import VLLMValidationError

            try:
                asked, _ = config.read(params.extra_args, is_greedy(params))
                check_request_texts(asked, vocabulary)
                config.couples(params)
            except (TypeError, ValueError) as error:
                named = next((key for key in REQUEST_KEYS if str(error).startswith(key)), RULE_KEY)
                raise VLLMValidationError(str(error), parameter=named) from error
            check(params)

        return validate

    return build
