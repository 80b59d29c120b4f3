"""One contender in a process of its own: reads requests from stdin, a JSON object a line, and answers likewise."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

import torch
from contenders import Answer, timed
from pairing import parse


def main() -> None:
    """Load, say so, and answer until stdin ends."""
    contender = (str, "generate, assisted, ensemble, or ours|<rule>|<draft length>")
    arguments = parse(__doc__, contender=contender, target=None, draft=None, proposals=6, threads=1)
    torch.set_num_threads(arguments.threads)
    kind, _, rest = arguments.contender.partition("|")
    answer = _ours(arguments, rest) if kind == "ours" else _theirs(arguments, kind)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(timed(answer, json.loads(line))), flush=True)


def _theirs(arguments: Namespace, kind: str) -> Answer:
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    target = AutoModelForCausalLM.from_pretrained(arguments.target, dtype=torch.float32).eval()
    if kind == "generate":
        return transformers_generate(target, tokenizer)
    draft = AutoModelForCausalLM.from_pretrained(arguments.draft, dtype=torch.float32).eval()
    weight = 0.5 if kind == "ensemble" else None
    return transformers_generate(target, tokenizer, draft, arguments.proposals, target_weight=weight)


def transformers_generate(
    target: Any, tokenizer: Any, draft: Any = None, proposals: int = 0, *, target_weight: float | None = None
) -> Answer:
    """Return `generate` of transformers: plain, assisted, or assisted with its static ensemble."""
    more: dict[str, object] = {} if draft is None else {"assistant_model": draft}
    if target_weight is not None:
        more["assistant_ensemble_weight"] = target_weight

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


def _ours(arguments: Namespace, rest: str) -> Answer:
    from cactus_decoding import load_pair

    rule, _, length = rest.partition("|")
    pair = load_pair(arguments.target, arguments.draft, dtype=torch.float32, kept_prompts=0)
    return ours(pair, {"rule": rule}, length or arguments.proposals)


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


if __name__ == "__main__":
    main()
