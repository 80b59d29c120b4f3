"""One contender in a process of its own: reads requests from stdin, a JSON object a line, and answers likewise."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

Answer = Callable[[dict[str, Any]], list[int]]


def main() -> None:
    """Load, say so, and answer until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", help="generate, assisted, ensemble, or ours|<rule>|<draft length>")
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--proposals", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    kind, _, rest = arguments.contender.partition("|")
    make = ours if kind == "ours" else transformers_generate
    answer = make(arguments, kind, rest)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        cpu, start = time.process_time(), time.perf_counter()
        tokens = answer(request)
        reply = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "tokens": tokens}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**reply, "peak_mib": peak}), flush=True)


def transformers_generate(arguments: argparse.Namespace, kind: str, _: str) -> Answer:
    """Return `generate` of transformers: plain, assisted, or assisted with its static ensemble."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    more: dict[str, object] = {}
    if kind != "generate":
        draft = AutoModelForCausalLM.from_pretrained(arguments.draft, dtype=torch.float32).eval()
        draft.generation_config.num_assistant_tokens = arguments.proposals
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        more["assistant_model"] = draft
    if kind == "ensemble":
        more["assistant_ensemble_weight"] = 0.5  # of the target

    def answer(request: dict[str, Any]) -> list[int]:
        torch.manual_seed(request["seed"])
        ids = tokenizer(request["text"], return_tensors="pt").input_ids
        sampled = {"do_sample": True, "temperature": request["temperature"], "top_k": 0, "top_p": 1.0}
        settings = sampled if request["temperature"] else {"do_sample": False}
        length = request["max_new_tokens"]
        output = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, **settings, **more)
        return output[0, ids.shape[1] :].tolist()

    return answer


def ours(arguments: argparse.Namespace, _: str, rest: str) -> Answer:
    """Return our loop with a rule and a draft length."""
    from cactus_decoding import Request, generate, load_pair
    from cactus_decoding.core.drafting.registry import as_draft_length

    rule, _, length = rest.partition("|")
    pair = load_pair(arguments.target, arguments.draft, dtype=torch.float32, kept_prompts=0)
    chosen = as_draft_length(length or arguments.proposals)

    def answer(request: dict[str, Any]) -> list[int]:
        given = {name: request[name] for name in ("max_new_tokens", "temperature", "seed")}
        return generate(pair, request["text"], Request.from_dict({"rule": rule} | given).proposing(chosen)).token_ids

    return answer


if __name__ == "__main__":
    main()
