"""Seeded requests whose prompts are read in chunks: the server goes on, and each gives what it gives alone."""

import pytest
import torch
from engine_run import run_jobs
from mixed_load import QUESTIONS
from transformers import AutoTokenizer
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from cactus_decoding import zoo
from cactus_decoding.engines.vllm.patches import is_replaced, repair_generators

REQUESTS, CHUNK = 60, 64
ASKED = (
    None,
    {"acceptance_rule": "cactus:delta=1"},
    {"acceptance_rule": "clamped:width=1"},
    {"acceptance_rule": "cactus:delta=3", "budget": 1.0},
)
"""What every fourth request asks for."""


@pytest.mark.engine
def test_seeded_requests_at_once_give_what_each_gives_alone_also_among_unseeded_ones() -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    texts = ["\n".join([*QUESTIONS[place:], *QUESTIONS[:place]]) for place in range(len(QUESTIONS))]
    ids = [tokenizer(f"Question: {text}\nAnswer:").input_ids for text in texts]
    assert all(CHUNK < len(one) < 2 * CHUNK for one in ids), "prompts are longer than a step reads"
    prompts = [ids[number % len(ids)] for number in range(REQUESTS)]
    settings = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True}
    seeded = [settings | {"seed": number, "extra_args": ASKED[number % len(ASKED)]} for number in range(REQUESTS)]
    half = [{**one, "seed": None} if number % 2 else one for number, one in enumerate(seeded)]
    # room for every proposal of a full batch: where vLLM has none it verifies fewer, and seeds repeat no more;
    # without the prefix cache, which would leave only each prompt's end to read
    engine = {"max_num_seqs": CHUNK // 4, "max_num_batched_tokens": CHUNK, "enable_chunked_prefill": True}
    jobs = [{"sampling": seeded}, {"sampling": seeded, "at_once": 1}, {"sampling": half}]
    results = run_jobs([job | {"prompts": prompts} for job in jobs], enable_prefix_caching=False, **engine)
    at_once, alone, mixed = (result["token_ids"] for result in results)
    assert at_once == alone
    assert len(set(map(tuple, alone))) > REQUESTS // 2, "seeds do something"
    assert mixed[::2] == at_once[::2]
    assert [len(tokens) for tokens in mixed] == [24] * REQUESTS


def test_only_the_cpu_s_runner_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    if "sample_tokens" in vars(CPUModelRunner):  # by another test of this process
        monkeypatch.delattr(CPUModelRunner, "sample_tokens")
    repair_generators(torch.device("cuda"))
    assert "sample_tokens" not in vars(CPUModelRunner)
    repair_generators(torch.device("cpu"))
    assert is_replaced(CPUModelRunner, "sample_tokens")
    assert not is_replaced(GPUModelRunner, "sample_tokens")
