"""A chat model's GGUF file in transformers and in vLLM: are greedy texts `generate`'s own, and what do rules answer?

    python -m studies.real_pair.engines SMOLLM2.gguf --task gsm8k:path=gsm8k_test.jsonl
    python -m studies.real_pair.run --only-render

vLLM answers in an environment of its own (`make test-vllm` makes it); both look proposals up.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.unpack import unpack
from cactus_decoding import Metrics, SuffixDrafter, speculative_generate
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.lab.evaluation.runs.results import read_results
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.real import CACTUS, VLLM
from scripts.results import parse, write

RESULT = Path(__file__).with_name("results") / "engines.json"
RULES = ("lossless", "clamped:width=2.0", "cactus:delta=1.0", "lenience:lenience=0.5")
PROBLEMS, TOKENS = 8, 48


def in_transformers(folder: str, prompts: list[str], dtype: torch.dtype) -> dict[str, Any]:
    """Return how many greedy texts are `generate`'s own, how much faster they are, and what steps brought."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    shared = {"do_sample": False, "max_new_tokens": TOKENS, "pad_token_id": tokenizer.eos_token_id}
    metrics = Metrics()
    ours = {"custom_generate": speculative_generate, "drafter": SuffixDrafter(), "metrics": metrics}
    texts, seconds = ([], []), [0.0, 0.0]
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        for place, more in enumerate(({}, ours)):
            began = time.process_time()
            found = model.generate(**inputs, **shared, **more)[0, inputs.input_ids.shape[1] :]
            seconds[place] += time.process_time() - began
            texts[place].append(found.tolist())
    own, mine = (sum(map(len, each)) / taken for each, taken in zip(texts, seconds, strict=True))
    equal = sum(a == b for a, b in zip(*texts, strict=True))
    return {"texts": len(prompts), "equal": equal, "ratio": mine / own, "steps": metrics.acceptance_length}


def in_vllm(folder: str, task: str, out: Path) -> list[dict[str, Any]]:
    """Return what `cactus eval` says of vLLM's answers, by rule."""
    given = ["eval", "--engine", "vllm", "--target", folder, "--draft", "ngram", "--task", task, "--chat"]
    given += [part for rule in RULES for part in ("--rule", rule)]
    given += ["--problems", str(PROBLEMS), "--max-new-tokens", str(TOKENS), "--num-speculative-tokens", "3"]
    subprocess.run([str(VLLM), "-c", CACTUS, *given, "--output", str(out)], check=True)
    return [
        {"rule": str(each.config.request.rule), "answers": len(each.group.ids)}
        | {name: each.known(name).value for name in ("tokens_per_answer", "acceptance_length")}
        for each in summarise(read_results(out))
    ]


if __name__ == "__main__":
    given = parse(__doc__, file=Path, task=(None, {"required": True}), results=RESULT)
    torch.set_num_threads(1)
    with TemporaryDirectory() as work:
        folder = str(Path(work) / "model")
        unpack(given.file.resolve(), Path(folder), "float32")
        tokenizer, problems = (
            AutoTokenizer.from_pretrained(folder),
            parse_task(given.task, PROBLEMS, chat=True).problems,
        )
        prompts = [as_chat_prompt(tokenizer, each.prompt) for each in problems]
        found = {str(dtype): in_transformers(folder, prompts, dtype) for dtype in (torch.float32, torch.bfloat16)}
        result = {"transformers": found, "vllm": in_vllm(folder, given.task, Path(work) / "vllm.jsonl")}
    write(given.results, result, {"study": "real_pair.engines", "file": given.file.name, "problems": PROBLEMS})
