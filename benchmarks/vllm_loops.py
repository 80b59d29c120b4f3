"""What answers for `vllm_table.py`: vLLM's engine, kept at a load, and this package's loop."""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, groupby
from typing import Any, NamedTuple

from contenders import busy_seconds
from draft_lengths import RULES

from cactus_decoding import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.engines.vllm.schedule import give_up

LOOPS = ("vllm", "transformers")
SAMPLINGS: dict[str, dict[str, float]] = {
    "plain": {"temperature": 1.0},
    "paper": {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
}
"""Temperature 1; the Cactus paper's."""
_WARM_UP_TOKENS = 8


class Cell(NamedTuple):
    """A setting that is measured: of a loop that drafts (drawn or likeliest, so many a step), for a rule."""

    loop: str
    drafting: str
    proposals: int
    rule: str
    sampling: str
    at_once: int


class Prompt(NamedTuple):
    """A problem of a task, as the target's template asks it."""

    id: str
    text: str
    token_ids: tuple[int, ...]
    stop: tuple[str, ...]


class Asked(NamedTuple):
    """A cell with the prompts that it still has to answer."""

    cell: Cell
    prompts: list[Prompt]


Answers = Callable[[Cell, Sequence[Prompt]], Iterator[dict[str, Any]]]
"""Yields the answers of a cell to prompts, in any order."""


def answer_cells(given: Namespace, missing: Sequence[Asked], prompts: Sequence[Prompt]) -> Iterator[dict[str, Any]]:
    """Load what answers, say how long that took, and yield answers: one at once in turn, other loads cell by cell."""
    begun = time.perf_counter()
    load = _vllm if missing[0].cell.loop == "vllm" else _transformers
    answers, about = load(given, [each.cell for each in missing], prompts)
    yield {"started": True, "seconds": round(time.perf_counter() - begun, 1), **about}
    for single, some in groupby(in_order(given, missing), key=lambda each: each.cell.at_once == 1):
        if single:
            for cell, prompt in in_turn([*some]):
                yield from answers(cell, [prompt])
        else:
            for each in some:
                yield from answers(each.cell, each.prompts)


def in_order(given: Namespace, missing: Sequence[Asked]) -> list[Asked]:
    """Sort by sampling and load, as they were listed."""
    return sorted(
        missing, key=lambda each: (given.sampling.index(each.cell.sampling), given.at_once.index(each.cell.at_once))
    )


def in_turn(asked: Sequence[Asked]) -> Iterator[tuple[Cell, Prompt]]:
    """Yield each prompt under all cells before the next; the cell that is first rotates."""
    prompts = {prompt.id: prompt for each in asked for prompt in each.prompts}
    for place, prompt in enumerate(prompts.values()):
        cells = [each.cell for each in asked if prompt in each.prompts]
        for i in range(len(cells)):
            yield cells[(place + i) % len(cells)], prompt


def request_of(cell: Cell, tokens: int, stop: Sequence[str] = (), seed: int = 0) -> Request:
    given = RULES.get(cell.rule, {"rule": "lossless"}) | SAMPLINGS[cell.sampling]
    request = Request.from_dict({**given, "max_new_tokens": tokens, "stop": list(stop), "seed": seed})
    return request.proposing(cell.proposals)


def kept_busy(
    engine: Any, params: Callable[[Prompt], Any], todo: Sequence[Prompt], fill: Sequence[Prompt], at_once: int
) -> Iterator[tuple[Prompt, Any, float]]:
    """Yield each answer with its seconds, from being asked to its end, while so many requests are always there.

    After the last prompt others take the free places, so that no answer has the engine to itself; these are not
    yielded, and are given up in the end.
    """
    waiting, fillers = deque(todo), cycle(fill)
    running: dict[str, tuple[Prompt | None, float]] = {}
    left, number = len(todo), 0
    while left:
        while len(running) < at_once:
            own = waiting.popleft() if waiting else None
            asked = own or next(fillers)
            name, number = str(number), number + 1
            running[name] = own, time.perf_counter()
            engine.add_request(name, {"prompt_token_ids": list(asked.token_ids)}, params(asked))
        for output in engine.step():
            if output.finished:
                own, begun = running.pop(output.request_id)
                if own is not None:
                    left -= 1
                    yield own, output, time.perf_counter() - begun
    give_up(engine, running)


def _vllm(given: Namespace, cells: Sequence[Cell], prompts: Sequence[Prompt]) -> tuple[Answers, dict[str, Any]]:
    """Start vLLM's engine with the number of proposals of the cells."""
    from cactus_decoding.engines.vllm import offline
    from cactus_decoding.lab.evaluation.engines.vllm import located

    more = {"dtype": given.dtype} | offline.parse_engine_arguments(given.engine_args)
    target, draft, more = located(given.target, given.draft, json.dumps(more))
    import vllm
    from vllm.sampling_params import RequestOutputKind

    drafting, proposals = cells[0].drafting, cells[0].proposals
    room = max(len(each.token_ids) for each in prompts) + given.tokens + max(given.proposals) + 8
    own = {"max_model_len": -(-room // 64) * 64} | ({"per_request_spec_decode_metrics": "summary"} if proposals else {})
    config = offline.engine_config(
        target, draft, proposals, own | more, max_num_seqs=max(given.at_once),
        draft_sampling="greedy" if drafting == "likeliest" else "probabilistic",
    )  # fmt: skip
    engine = offline.start_engine(config, offline.StepCounts())

    def asked(cell: Cell, tokens: int) -> Callable[[Prompt], Any]:
        def params(prompt: Prompt) -> Any:
            from cactus_decoding.engines.vllm.extra_args import asked_of

            request = request_of(cell, tokens, prompt.stop)
            keys = None if isinstance(request.rule, Lossless) else asked_of(request)
            return vllm.SamplingParams(
                **SAMPLINGS[cell.sampling], max_tokens=tokens, stop=list(prompt.stop), extra_args=keys,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )  # fmt: skip

        return params

    places = {each.id: place for place, each in enumerate(prompts)}

    def answers(cell: Cell, todo: Sequence[Prompt]) -> Iterator[dict[str, Any]]:
        engine.collective_rpc("restart_draws", args=(places[todo[0].id],))
        clock = Clock()
        for prompt, output, seconds in kept_busy(engine, asked(cell, given.tokens), todo, prompts, cell.at_once):
            completion = output.outputs[0]
            counted = completion.spec_decode_metrics
            counts = counted.to_dict() if counted is not None else {}
            yield cell._asdict() | {
                "prompt": prompt.id, "seconds": round(seconds, 4), "tokens": len(completion.token_ids),
                "steps": counts.get("num_spec_steps", 0), "accepted": counts.get("num_accepted_draft_tokens", 0),
                "finish": "length" if completion.finish_reason == "length" else "stop", **clock.others(),
            }  # fmt: skip

    for cell in {each.rule: each for each in cells}.values():  # the first passes are slow
        for _ in kept_busy(engine, asked(cell, _WARM_UP_TOKENS), prompts[:1], prompts, 1):
            pass
    return answers, {"engine": f"vllm {vllm.__version__}", "on_gpu": _on_gpu()}


def _transformers(given: Namespace, cells: Sequence[Cell], prompts: Sequence[Prompt]) -> tuple[Answers, dict[str, Any]]:
    import torch
    import transformers

    from cactus_decoding import generate, load_pair

    torch.set_num_threads(given.threads)
    roles = {"target": given.target, "draft": given.draft}
    pair = load_pair(**roles, dtype=getattr(torch, given.dtype), kept_prompts=0)
    places = {each.id: place for place, each in enumerate(prompts)}

    def answers(cell: Cell, todo: Sequence[Prompt]) -> Iterator[dict[str, Any]]:
        for prompt in todo:
            clock, begun = Clock(), time.perf_counter()
            response = generate(pair, prompt.text, request_of(cell, given.tokens, prompt.stop, places[prompt.id]))
            seconds, metrics = time.perf_counter() - begun, response.metrics
            yield cell._asdict() | {
                "prompt": prompt.id, "seconds": round(seconds, 4), "tokens": len(response.token_ids),
                "steps": metrics.steps if cell.proposals else 0, "accepted": metrics.accepted,
                "finish": "length" if response.finish_reason == "length" else "stop", **clock.others(),
            }  # fmt: skip

    for cell in cells:
        generate(pair, prompts[0].text, request_of(cell, _WARM_UP_TOKENS))
    return answers, {"engine": f"transformers {transformers.__version__}", "on_gpu": _on_gpu()}


def _on_gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


class Clock:
    """The share of the machine's processors that other processes had since the last answer; unknown with a GPU."""

    def __init__(self) -> None:
        self._begun = busy_seconds(), time.process_time(), time.perf_counter()

    def others(self) -> Mapping[str, float]:
        before, self._begun = self._begun, (busy_seconds(), time.process_time(), time.perf_counter())
        busy, own, seconds = (now - then for now, then in zip(self._begun, before, strict=True))
        if _on_gpu() is not None or seconds <= 0:
            return {}
        return {"others": round(max(busy - own, 0.0) / (seconds * (os.cpu_count() or 1)), 3)}
