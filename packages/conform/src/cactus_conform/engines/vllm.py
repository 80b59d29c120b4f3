"""vLLM's offline engine as an engine."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from cactus_conform.engine import (
    DRAFTS,
    LOOK_UP,
    PENALTIES,
    Engine,
    EngineAnswer,
    EngineError,
    Query,
    Sampling,
    needing,
)
from cactus_conform.models import POSITIONS, write_models


class VllmEngine(Engine):
    """`vllm.LLM` with a draft model, or with ``ngram``, in float32; one engine is started for each draft.

    ``settings`` are those of the speculation, such as ``{"draft_sample_method": "probabilistic"}``. Others are
    ``drafts`` to test with, ``supports`` more of `OPTIONAL`, ``without`` fewer (all with commas), ``speculation=false``
    to propose nothing, and ``plugin=false`` to leave plug-ins out. Raises `ValueError` where vLLM is not
    installed.
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        with needing("vllm"):
            import vllm

        given = dict(settings or {})
        self.drafts: Sequence[str] = str(given.pop("drafts", f"bad,good,{LOOK_UP}")).split(",")
        more, fewer = ({*str(given.pop(name, "")).split(",")} - {""} for name in ("supports", "without"))
        always = {"top_k", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "stop_token_ids"}
        self.supports = frozenset({*always, *more, "batch", "cancels", "repeats", "logprobs"} - fewer)
        self._speculates = bool(given.pop("speculation", True))
        plugged = [*entry_points(group="vllm.general_plugins").names] if given.pop("plugin", True) else []
        if not plugged:
            os.environ["VLLM_PLUGINS"] = ""
        said = [f"{name}={value}" for name, value in given.items()]
        said += [f"plug-in {name}" for name in plugged] + ["nothing proposed"] * (not self._speculates)
        self.name = ", ".join([f"vLLM {vllm.__version__}", *said])
        self._speculation, self._folder = given, tempfile.TemporaryDirectory()
        write_models(Path(self._folder.name))
        self._engine: Any = None
        self._started: tuple[str, int] | None = None

    def close(self) -> None:
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        if self._engine is not None:
            self._engine.llm_engine.engine_core.shutdown()
            self._engine, self._started = None, None
            gc.collect()

    def _start(self, sampling: Sampling) -> Any:
        from vllm import LLM

        wanted = sampling.draft, sampling.num_speculative_tokens
        if self._started == wanted:
            return self._engine
        self._stop()
        speculation: dict[str, Any] = {"num_speculative_tokens": sampling.num_speculative_tokens, **self._speculation}
        if sampling.draft in DRAFTS:
            speculation["model"] = str(Path(self._folder.name, sampling.draft))
        else:
            speculation = {"method": LOOK_UP, "prompt_lookup_max": 2, "prompt_lookup_min": 1} | speculation
        self._engine = LLM(
            model=str(Path(self._folder.name, "target")),
            speculative_config=speculation if self._speculates else None,
            dtype="float32",
            max_model_len=POSITIONS,
            max_num_seqs=64,
            enforce_eager=True,
            gpu_memory_utilization=0.1,
            generation_config="vllm",
            seed=0,
            per_request_spec_decode_metrics="summary" if self._speculates else "none",
        )
        self._started = wanted
        return self._engine

    def answer(self, queries: Sequence[Query]) -> list[EngineAnswer]:
        from vllm import SamplingParams

        try:
            engine = self._start(queries[0].sampling)
            if queries[0].sampling.cancels:
                _give_up(engine, queries)
            found = engine.generate(
                [{"prompt_token_ids": list(query.prompt)} for query in queries],
                [SamplingParams(**_settings(query)) for query in queries],
                use_tqdm=False,
            )
        except Exception as error:
            raise EngineError(f"{self.name} failed: {type(error).__name__}: {error}") from error
        return [_answer(each.outputs[0]) for each in found]


def _give_up(engine: Any, queries: Sequence[Query]) -> None:
    from vllm import SamplingParams

    begun = []
    for query in queries:
        settings, other = SamplingParams(**_settings(query) | {"max_tokens": 40}), [*query.prompt, 9, 8]
        begun.append(engine.llm_engine.add_request(f"given up, {query.seed}", {"prompt_token_ids": other}, settings))
    engine.llm_engine.step()
    engine.llm_engine.abort_request(begun, internal=True)


def _settings(query: Query) -> dict[str, Any]:
    sampling = query.sampling
    made = sampling.named() | sampling.named(*PENALTIES) | {"max_tokens": sampling.max_tokens, "seed": query.seed}
    made |= {"top_k": sampling.top_k or -1, "stop_token_ids": [*sampling.ends], "logprobs": 0}
    if sampling.logit_bias:
        made["logit_bias"] = dict(sampling.logit_bias)
    if sampling.letters:
        from vllm.sampling_params import StructuredOutputsParams

        made["structured_outputs"] = StructuredOutputsParams(regex=f"[{sampling.letters}]*")
    return made | {"detokenize": False}


def _answer(output: Any) -> EngineAnswer:
    tokens = tuple(output.token_ids)
    logprobs = output.logprobs and tuple(of[token].logprob for token, of in zip(tokens, output.logprobs, strict=False))
    counted = output.spec_decode_metrics  # None where nothing was proposed
    return EngineAnswer(tokens, logprobs, counted and sum(kept * times for kept, times in enumerate(counted.histogram)))
