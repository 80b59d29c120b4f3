"""Time of a whole step over that of its forward passes alone, on random models of a real size; and on long contexts."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from cactus_decoding import ModelDrafter, Request, SamplingParams
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.loop import decode
from cactus_decoding.core.sampling.params import as_logits_to_probs
from cactus_decoding.engines.transformers.cached_model import CachedModel

HERE = Path(__file__).resolve().parent
VOCABULARY = 151_936


def target_model() -> PreTrainedModel:
    """Return a random model of the shape of Qwen3-0.6B, in bfloat16."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
    )
    return _random(Qwen3ForCausalLM, config)


def draft_model() -> PreTrainedModel:
    """Return a random draft of two narrow layers with the same vocabulary."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
    )
    return _random(LlamaForCausalLM, config)


def _random(kind, config) -> PreTrainedModel:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return kind(config).eval()
    finally:
        torch.set_default_dtype(before)


def measure(target: PreTrainedModel, draft: PreTrainedModel, context: int, proposals: int, rounds: int) -> dict:
    """Return medians over rounds of a step, and of its forward passes alone, in milliseconds of wall and CPU time.

    In every round each is timed once, in turn, after the same context.
    """
    prompt = torch.randint(VOCABULARY, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = SamplingParams(temperature=0.6, top_p=0.95, top_k=20)
    request, to_probs = Request(sampling=sampling, num_speculative_tokens=proposals), as_logits_to_probs(sampling)
    cached, drafter = CachedModel(target), ModelDrafter(draft)
    steps = decode(
        cached,
        drafter,
        prompt,
        request.verifier(to_probs, as_logits_to_probs(SamplingParams()), sampling),
        to_probs,
        length=request.num_speculative_tokens,
        max_length=context + (rounds + 2) * (proposals + 1) + 8,
        stopping_criteria=lambda ids: False,
        generator=torch.Generator().manual_seed(0),
    )
    next(steps)  # reads the prompt
    cache = DynamicCache(config=target.config)
    # the content of a cache does not matter for time: this saves reading the prompt again
    for layer in range(target.config.num_hidden_layers):
        shape = (1, target.config.num_key_value_heads, context, target.config.head_dim)
        cache.update(torch.randn(shape).bfloat16(), torch.randn(shape).bfloat16(), layer)
    block = prompt[: proposals + 1]

    def target_forward() -> None:
        length = cached.length
        cached.append(block, rows=proposals + 1)
        cached.rollback(length)

    def draft_forwards() -> None:
        length = drafter._model.length
        for token in block[:proposals]:
            drafter._model.append([token], rows=1)
        drafter._model.rollback(length)

    @torch.inference_mode()
    def transformers_forward() -> None:
        target(input_ids=torch.tensor([block]), past_key_values=cache, use_cache=True)
        cache.crop(-len(block))

    functions = {
        "step": lambda: next(steps),
        "target forward": target_forward,
        "draft forwards": draft_forwards,
        "target forward of transformers": transformers_forward,
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in functions}
    for round_ in range(rounds + 2):
        for name, function in functions.items():
            cpu, start = time.process_time(), time.perf_counter()
            function()
            if round_ >= 2:
                times[name].append((time.perf_counter() - start, time.process_time() - cpu))
    result: dict[str, object] = {"context": context, "proposals": proposals}
    for i, clock in enumerate(("wall", "cpu")):
        median = {name: statistics.median(pair[i] for pair in pairs) for name, pairs in times.items()}
        forwards = [a[i] + b[i] for a, b in zip(times["target forward"], times["draft forwards"], strict=True)]
        ratio = statistics.median(s[i] / f for s, f in zip(times["step"], forwards, strict=True))
        against = statistics.median(
            t[i] / o[i] for t, o in zip(times["target forward of transformers"], times["target forward"], strict=True)
        )
        result[clock] = {
            "ms": {name: round(value * 1e3, 2) for name, value in median.items()},
            "step over its forwards": round(ratio, 3),
            "transformers' target forward over ours": round(against, 3),
        }
    return result


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 8192])
    parser.add_argument("--proposals", type=int, nargs="+", default=[6])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=HERE / "results" / "end_to_end_step.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    target, draft = target_model(), draft_model()
    given = {key: value for key, value in vars(arguments).items() if key != "output"}
    results = []
    for context in arguments.contexts:
        for proposals in arguments.proposals:
            results.append(measure(target, draft, context, proposals, arguments.rounds))
            print(json.dumps(results[-1]), flush=True)
            arguments.output.write_text(
                json.dumps({"results": results, "provenance": provenance(given)}, indent=1) + "\n"
            )
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
