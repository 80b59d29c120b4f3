"""vLLM's engine without a server, for one request at a time: seeds for each answer, and counts of its steps."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Any

from cactus_decoding.core.drafting.lookup import NgramDrafter
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.engines.vllm.server import speculative_config

OURS = {"model", "speculative_config", "worker_extension_cls", "disable_log_stats", "max_num_seqs"}
"""Arguments that the run itself sets, or that counting needs."""
_DEFAULTS: dict[str, Any] = {
    "generation_config": "vllm",  # otherwise vLLM takes sampling defaults from the model's generation_config.json
    "enable_prefix_caching": False,  # what an earlier answer left cached would cut this one's time
}
_ON_CPU: dict[str, Any] = {"enforce_eager": True, "gpu_memory_utilization": 0.3}


class RestartedDraws:
    """A worker extension (``worker_extension_cls``) that seeds random draws anew for each answer.

    vLLM's own seeds per request do not cover the V1 runner's draft tokens.
    """

    def restart_draws(self, seed: int) -> None:
        from vllm.utils.torch_utils import set_random_seed

        set_random_seed(seed % 2**32)  # NumPy takes no more


class StepCounts:
    """Counts of an engine that has one request, step by step; vLLM uses it as a stat logger."""

    def __init__(self) -> None:
        self._metrics = Metrics()

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if iteration_stats is None or not iteration_stats.num_generation_tokens:
            return
        drafts = getattr(scheduler_stats, "spec_decoding_stats", None)
        drafted, accepted = (drafts.num_draft_tokens, drafts.num_accepted_tokens) if drafts is not None else (0, 0)
        self._metrics += Metrics(
            steps=1,
            drafted=drafted,
            accepted=accepted,
            recovered=int(accepted < drafted),
            bonus=int(accepted == drafted),
        )

    def take(self) -> Metrics:
        taken, self._metrics = self._metrics, Metrics()
        return taken

    def log(self, *_: Any) -> None:
        pass

    log_engine_initialized = record_sleep_state = log


def parse_engine_arguments(text: str | None) -> dict[str, Any]:
    """Parse a JSON object of engine arguments; raise `ValueError` for other text and for names in `OURS`."""
    if text is None:
        return {}
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--engine-args must be a JSON object, but {text!r} is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(f'--engine-args must be a JSON object such as \'{{"dtype": "float32"}}\', but is {text!r}')
    if taken := sorted(OURS & set(given)):
        raise ValueError(
            f"--engine-args may not hold {', '.join(taken)}: other options or the evaluation itself say it"
        )
    return given


def check_argument_names(given: dict[str, Any]) -> None:
    from vllm.engine.arg_utils import EngineArgs

    if unknown := sorted(set(given) - {field.name for field in fields(EngineArgs)}):
        raise ValueError(f"--engine-args: vLLM's engine has no argument {', '.join(unknown)}")


def engine_config(
    target: str,
    draft: str,
    num_speculative_tokens: int,
    given: dict[str, Any],
    max_num_seqs: int = 1,
    draft_sampling: str = "probabilistic",
) -> Any:
    """Return vLLM's configuration without starting an engine; raise `ValueError` where vLLM refuses it.

    The draft may be ``ngram``; with 0 proposals there is only the target. ``given`` overrides the defaults here.
    """
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext

    speculation = None
    if num_speculative_tokens:
        speculation = speculative_config(draft, num_speculative_tokens, draft_sampling)
        if draft == "ngram":  # what our own n-gram draft looks up
            own = NgramDrafter()
            speculation |= {"prompt_lookup_min": own.min_ngram_size, "prompt_lookup_max": own.max_ngram_size}
    arguments = EngineArgs(
        model=target,
        speculative_config=speculation,
        worker_extension_cls=f"{__name__}.{RestartedDraws.__name__}",
        max_num_seqs=max_num_seqs,
        **{**_DEFAULTS, **(_ON_CPU if current_platform.is_cpu() else {}), **given},
    )
    try:
        return arguments.create_engine_config(UsageContext.LLM_CLASS)
    except OSError as error:  # of the hub's client, and long
        raise ValueError(f"vLLM cannot load {target!r} with draft {draft!r}: {error}") from error


def start_engine(config: Any, counts: StepCounts) -> Any:
    from vllm.v1.engine.llm_engine import LLMEngine

    try:
        return LLMEngine.from_vllm_config(config, stat_loggers=[lambda *_: counts])
    except RuntimeError as error:
        raise ValueError(
            f"vLLM's engine did not start ({error}) What went wrong stands above; where it is memory, try "
            '--engine-args \'{"gpu_memory_utilization": 0.2, "max_model_len": 1024}\''
        ) from error


def keep_stdout_clean() -> None:
    """Have vLLM log warnings only, to stderr, unless its environment variables say otherwise.

    vLLM reads them when it is imported, in this process and in those that it starts.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
