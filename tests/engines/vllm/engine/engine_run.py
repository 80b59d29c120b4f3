"""Runs jobs on a real offline engine in a process of its own: `python engine_run.py jobs.json results.json`.

The input holds arguments of the engine, and jobs: prompts, how many requests of each, sampling parameters (for all of
them, or a list with each request's own), and how many of them are there at once. The output holds each job's token
ids, vLLM's acceptance counters and, if the engine is asked for them, each request's own metrics.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cactus_decoding import zoo

ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # also where several workers share a NUMA node
}
ENGINE_ARGUMENTS = {
    "model": str(zoo.path("target")),
    "speculative_config": {"model": str(zoo.path("draft")), "num_speculative_tokens": 3},
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 512,
    "gpu_memory_utilization": 0.2,
    "generation_config": "vllm",
    "dtype": "float32",
    "seed": 0,
    "disable_log_stats": False,
}
ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""Saves the imports of two more processes, each of which takes ten seconds; servers in other tests have several."""
SECONDS = 900


def run_jobs(jobs: list[dict], **engine_arguments: object) -> list[dict]:
    """Start an engine, run jobs on it one after the other, and return their results."""
    with tempfile.TemporaryDirectory() as folder:
        given, wanted, log = (Path(folder) / name for name in ("jobs.json", "results.json", "log.txt"))
        given.write_text(json.dumps({"engine": ENGINE_ARGUMENTS | engine_arguments, "jobs": jobs}))
        command = [sys.executable, __file__, str(given), str(wanted)]
        with log.open("w") as output:
            code = subprocess.run(
                command,
                env=os.environ | ENGINE_ENVIRONMENT | ONE_PROCESS,
                stdout=output,
                stderr=output,
                timeout=SECONDS,
            ).returncode
        if code != 0:
            raise AssertionError(f"the engine ended with code {code}:\n{log.read_text()[-20000:]}")
        print(*(line for line in log.read_text().splitlines() if line.startswith("engine_run:")), sep="\n")
        return json.loads(wanted.read_text())


def main(given: Path, wanted: Path) -> None:
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    request = json.loads(given.read_text())
    begin = time.monotonic()
    engine = LLM(**request["engine"])
    print(f"engine_run: started after {time.monotonic() - begin:.0f} s", flush=True)

    def counters() -> dict[str, float]:
        metrics = [metric for metric in engine.get_metrics() if metric.name.startswith("vllm:spec_decode_num")]
        return {metric.name.rpartition("num_")[2]: metric.value for metric in metrics if hasattr(metric, "value")}

    results = []
    for job in request["jobs"]:
        begin, before = time.monotonic(), counters()
        prompts = [{"prompt_token_ids": ids} for ids in job["prompts"] for _ in range(job.get("copies", 1))]
        sampling = job["sampling"] if isinstance(job["sampling"], list) else [job["sampling"]] * len(prompts)
        for one in sampling:
            if isinstance(choice := one.get("structured_outputs"), dict):
                one["structured_outputs"] = StructuredOutputsParams(**choice)
        requests = list(zip(prompts, [SamplingParams(**one) for one in sampling], strict=True))
        batches = batched(requests, job.get("at_once", len(requests)))
        try:
            outputs = []
            for batch in batches:
                outputs += engine.generate(*map(list, zip(*batch, strict=True)), use_tqdm=False)
        except VLLMValidationError as error:
            results.append({"error": str(error)})
            continue
        after = counters()
        print(f"engine_run: a job took {time.monotonic() - begin:.1f} s", flush=True)
        results.append(
            {
                "token_ids": [list(output.outputs[0].token_ids) for output in outputs],
                "metrics": [one and one.to_dict() for one in (out.outputs[0].spec_decode_metrics for out in outputs)],
                "counters": {name: after[name] - before.get(name, 0) for name in after},
            }
        )
    wanted.write_text(json.dumps(results))


def batched(requests: list, size: int) -> list[list]:
    return [requests[begin : begin + size] for begin in range(0, len(requests), size)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
