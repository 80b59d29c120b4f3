"""What answers the same requests in turn, so that a busy machine slows all of them alike.

Run as a program it is one of them: it reads requests from stdin, a JSON object a line, and answers likewise. By an
interpreter that has vLLM it needs nothing of ours.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns at least the ``tokens`` of the answer to a request."""


class Contender:
    """Something that answers: a function, so that several can share models that are too large to be loaded by each."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name, self.answer = name, lambda request: timed(answer, request)


class Process:
    """The contender of a name in a process of its own."""

    def __init__(self, name: str, python: str, pair: Sequence[object], threads: int) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR",
        }  # fmt: skip
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)  # an interpreter of its own has packages of its own
        command = [python, __file__, name, *map(str, pair)]
        pipe = subprocess.PIPE
        self.name = name
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert self._read() == {"ready": True}

    def answer(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Return seconds, CPU seconds, tokens and the peak memory so far."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.wait()}")
        return json.loads(line)


def timed(answer: Answer, request: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with its seconds, CPU seconds, and the peak memory of this process so far.

    ``others`` is the share of the machine's processors that other processes had meanwhile, where Linux tells.
    """
    busy, cpu, start = busy_seconds(), time.process_time(), time.perf_counter()
    found = answer(request)
    reply = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, **found}
    more = busy_seconds() - busy - reply["cpu_seconds"]
    reply["others"] = max(more / (reply["seconds"] * (os.cpu_count() or 1)), 0.0)
    return {**reply, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def busy_seconds() -> float:
    """Return how long all processors together have been at work; 0 where that is unknown."""
    try:
        user, nice, system, _, _, *interrupts = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except (OSError, ValueError):
        return 0.0
    return sum(map(int, (user, nice, system, *interrupts))) / os.sysconf("SC_CLK_TCK")


def race(
    contenders: Sequence[Contender | Process], requests: Sequence[dict[str, Any]], first: int = 0, warm_ups: int = 0
) -> dict[str, list[dict[str, Any]]]:
    """Let every contender answer each request, in an order that rotates, beginning with ``first``.

    So many of the first requests are answered before, and not counted.
    """
    answers: dict[str, list[dict[str, Any]]] = {contender.name: [] for contender in contenders}
    for i, request in enumerate([*requests[:warm_ups], *requests]):
        for j in range(len(contenders)):
            contender = contenders[(first + i + j) % len(contenders)]
            reply = contender.answer(request)
            if i >= warm_ups:
                answers[contender.name].append(reply)
    return answers


def summary(answers: Mapping[str, Sequence[Mapping[str, Any]]], baselines: Sequence[str]) -> dict[str, Any]:
    """Return each contender's median tokens per second, and the medians of its ratios to the baselines'.

    Seconds are of wall time; ``cpu`` says the same of CPU time, in which a busy machine shows less.
    """
    rates = {
        clock: {name: [len(reply["tokens"]) / reply[clock] for reply in replies] for name, replies in answers.items()}
        for clock in ("seconds", "cpu_seconds")
    }

    def ratios(clock: str, name: str) -> dict[str, float]:
        pairs = {
            base: zip(rates[clock][name], rates[clock][base], strict=True) for base in baselines if base in answers
        }
        return {base: round(statistics.median(own / its for own, its in both), 3) for base, both in pairs.items()}

    return {
        name: {
            "tokens_per_second": round(statistics.median(rates["seconds"][name]), 1),
            "tokens_per_cpu_second": round(statistics.median(rates["cpu_seconds"][name]), 1),
            "ratio": ratios("seconds", name),
            "ratio_cpu": ratios("cpu_seconds", name),
            "tokens": sum(len(reply["tokens"]) for reply in replies),
            "peak_mib": round(max(reply["peak_mib"] for reply in replies)),
        }
        for name, replies in answers.items()
    }


def transformers_generate(target: Any, tokenizer: Any, draft: Any = None, proposals: int = 0) -> Answer:
    """Return `generate` of transformers, plain or assisted."""
    import torch

    more: dict[str, object] = {} if draft is None else {"assistant_model": draft}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(request["seed"])
        if draft is not None:  # models are shared by contenders with other numbers of proposals
            draft.generation_config.num_assistant_tokens = proposals
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0
        ids = tokenizer(request["text"], return_tensors="pt").input_ids.to(target.device)
        sampled = {"do_sample": True, "temperature": request["temperature"], "top_k": 0, "top_p": 1.0}
        settings = sampled if request["temperature"] else {"do_sample": False}
        length = request["max_new_tokens"]
        output = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, **settings, **more)
        return {"tokens": output[0, ids.shape[1] :].tolist()}

    return answer


def ours(pair: Any, settings: Mapping[str, object], proposals: int | str) -> Answer:
    """Return our loop with a rule and what goes with it, and a draft length."""
    from cactus_decoding import Request, generate
    from cactus_decoding.core.drafting.registry import as_draft_length

    chosen = as_draft_length(proposals)

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        given = {name: request[name] for name in ("max_new_tokens", "temperature", "seed")}
        response = generate(pair, request["text"], Request.from_dict({**settings, **given}).proposing(chosen))
        return {"tokens": response.token_ids, "steps": response.metrics.steps}

    return answer


def load_ours(name: str, target: str, draft: str, proposals: int) -> Answer:
    import torch

    from cactus_decoding import load_pair

    _, rule, length = f"{name}|".split("|")[:3]
    pair = load_pair(target, draft, dtype=torch.float32, kept_prompts=0)
    return ours(pair, {"rule": rule}, length or proposals)


def load_transformers(name: str, target: str, draft: str, proposals: int) -> Answer:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    models = [
        AutoModelForCausalLM.from_pretrained(each, dtype=torch.float32).eval()
        for each in ((target,) if name == "generate" else (target, draft))
    ]
    return transformers_generate(models[0], AutoTokenizer.from_pretrained(target), *models[1:], proposals=proposals)


def load_vllm(name: str, target: str, draft: str, proposals: int) -> Answer:
    """Return vLLM's CPU engine, compiled, without or with the draft, which samples."""
    from vllm import LLM, SamplingParams

    speculative = {
        "method": "draft_model", "model": draft, "num_speculative_tokens": proposals,
        "draft_sample_method": "probabilistic",
    }  # fmt: skip
    engine = LLM(
        target, dtype="float32", max_num_seqs=1, generation_config="vllm", enable_prefix_caching=False,
        kv_cache_memory_bytes=1 << 29,  # rather than nearly all memory, which the other contenders share
        speculative_config=speculative if name == "vllm-speculative" else None,
    )  # fmt: skip

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        given = {name: request[name] for name in ("temperature", "seed")}
        sampling = SamplingParams(max_tokens=request["max_new_tokens"], **given)
        return {"tokens": [*engine.generate(request["text"], sampling, use_tqdm=False)[0].outputs[0].token_ids]}

    return answer


def main(name: str, target: str, draft: str, proposals: str) -> None:
    """Load, say so, and answer until stdin ends; what libraries print does not go to stdout."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    load = load_ours if "|" in name else load_vllm if "vllm" in name else load_transformers
    answer = load(name, target, draft, int(proposals))
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(answer, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    for argument in ("name", "target", "draft", "proposals"):
        parser.add_argument(argument)
    main(**vars(parser.parse_args()))
