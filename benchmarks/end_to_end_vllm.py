"""vLLM as a contender, like end_to_end_worker.py; it runs in vLLM's own environment and imports nothing of ours."""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time

# these are read when vllm is imported
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")


def main() -> None:
    """Load, say so, and answer until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender", choices=["vllm", "vllm-speculative"])
    parser.add_argument("--target", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--proposals", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    # replies go to the real stdout; whatever vllm prints does not
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    speculative = {
        "method": "draft_model", "model": arguments.draft, "num_speculative_tokens": arguments.proposals,
        "draft_sample_method": "probabilistic",
    }  # fmt: skip
    engine = LLM(
        arguments.target, dtype="float32", max_num_seqs=1, generation_config="vllm", enable_prefix_caching=False,
        speculative_config=speculative if arguments.contender == "vllm-speculative" else None,
    )  # fmt: skip
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        sampling = SamplingParams(
            temperature=request["temperature"], max_tokens=request["max_new_tokens"], seed=request["seed"]
        )
        cpu, start = time.process_time(), time.perf_counter()
        tokens = list(engine.generate(request["text"], sampling, use_tqdm=False)[0].outputs[0].token_ids)
        reply = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu, "tokens": tokens}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**reply, "peak_mib": peak}), file=replies, flush=True)


if __name__ == "__main__":
    main()
