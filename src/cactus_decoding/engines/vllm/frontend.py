"""The patch of vLLM's front end: it refuses bad values before they reach a worker."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from cactus_decoding.engines.openai.keys import RULE_KEY
from cactus_decoding.engines.vllm.extra_args import (
    ServerConfig,
    check_request_texts,
    check_texts,
    vocabulary_of,
)
from cactus_decoding.engines.vllm.patches import replace


def install() -> None:
    from vllm.v1.engine.input_processor import InputProcessor

    replace(InputProcessor, "_build_logits_processors_params_validator", with_check)


def with_check(stock: Callable[[Any], Callable[[Any], None]]) -> Callable[[Any], Callable[[Any], None]]:
    """Check the server's own values when the validator is built, and each request's before vLLM does."""

    def build(processor: Any) -> Callable[[Any], None]:
        config = ServerConfig.of(processor.vllm_config)
        vocabulary = cache(lambda: vocabulary_of(processor.vllm_config))  # where nobody asks, nobody waits for it
        if config.default is not None:  # also without a rule, for requests that bring one
            check_texts(config.default.policy, vocabulary)
        check = stock(processor)

        def validate(params: Any) -> None:
            from vllm.exceptions import VLLMValidationError

            try:
                asked, _ = config.read(params.extra_args)
                check_request_texts(asked, vocabulary)
            except (TypeError, ValueError) as error:
                raise VLLMValidationError(str(error), parameter=RULE_KEY) from error
            check(params)

        return validate

    return build
