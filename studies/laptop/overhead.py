"""What a step costs beside its forward passes, at a vocabulary of 151,936: a table in docs/studies/tables/laptop.md.

    python -m studies.laptop.overhead                                    minutes, 800 MB of disk, and of memory
    python -m studies.laptop.overhead --target T.gguf --draft D.gguf     of a real pair, beside llama_cpp.Llama
    python -m studies.laptop.overhead --only-render                      the table from the result file

The target has the shape of Qwen3-0.6B and random weights, the draft its first four layers. All layers hold the same
numbers. Times are the processor's, of one thread, so that other work on the machine disturbs them less; a pass is what
``llama_decode`` takes, and all else is everything around it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants

from cactus_decoding import Pair, load_pair, stream
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.engines.llama_cpp.models.library import library
from scripts.pages import columns
from studies.study import study

VOCABULARY, WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_WIDTH, LAYERS, DRAFT_LAYERS = 151_936, 1024, 3072, 16, 8, 128, 28, 4
PROMPT_TOKENS, PROPOSALS = 64, 4
RESULTS = Path(__file__).with_name("results") / "overhead.json"
WAYS: dict[str, dict[str, Any]] = {
    "lossless": {},
    "lossless, temperature 0": {"temperature": 0},
    "lossless, top-p 0.95, top-k 40": {"top_p": 0.95, "top_k": 40},
    "cactus:delta=1": {"rule": "cactus:delta=1"},
    "cactus:delta=1, top-p 0.95, top-k 40": {"rule": "cactus:delta=1", "top_p": 0.95, "top_k": 40},
    "clamped:width=1": {"rule": "clamped:width=1"},
    "clamped:width=1, budget 5": {"rule": "clamped:width=1", "budget": 5.0},
    "clamped:width=1, digits protected": {"rule": "clamped:width=1", "protect": "digits"},
}
ALONE = {"no proposals, temperature 0": {"temperature": 0, "num_speculative_tokens": 0}}
QUESTION = "Write a Python class for a binary search tree with insertion, deletion and iteration, with docstrings."


def write_random(path: Path, layers: int) -> Path:
    """Write a model of Qwen3-0.6B's shape with some layers; the same numbers whatever their count."""
    generator, q8_0, f32 = np.random.default_rng(0), GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32
    writer = GGUFWriter(path, "qwen3")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    for name, value in {
        "name": "random", "vocab_size": VOCABULARY, "context_length": 4096, "embedding_length": WIDTH,
        "block_count": layers, "feed_forward_length": HIDDEN, "head_count": HEADS, "head_count_kv": KV_HEADS,
        "key_length": HEAD_WIDTH, "value_length": HEAD_WIDTH, "rope_freq_base": 1e6, "layer_norm_rms_eps": 1e-6,
    }.items():  # fmt: skip
        getattr(writer, f"add_{name}")(value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([spelled(number) for number in range(VOCABULARY)])
    writer.add_token_types([TokenType.USER_DEFINED] * VOCABULARY)
    writer.add_token_merges(["a b"])

    def random(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        values = generator.standard_normal((rows, columns), dtype=np.float32) * (scale / columns**0.5)
        return quants.quantize(values, q8_0)

    inner, shared = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    # rows about as peaked as a language model's at temperature 1
    tensors = {"token_embd": random(VOCABULARY, WIDTH, 4.0), "output_norm": np.ones(WIDTH, np.float32)}
    shapes = {
        "attn_q": (inner, WIDTH), "attn_k": (shared, WIDTH), "attn_v": (shared, WIDTH), "attn_output": (WIDTH, inner),
        "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN),
    }  # fmt: skip
    norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH, "attn_q_norm": HEAD_WIDTH, "attn_k_norm": HEAD_WIDTH}
    each = {name: random(*shape) for name, shape in shapes.items()}
    each |= {name: np.ones(size, np.float32) for name, size in norms.items()}
    tensors |= {f"blk.{layer}.{name}": values for layer in range(layers) for name, values in each.items()}
    for name, values in tensors.items():
        writer.add_tensor(f"{name}.weight", values, raw_dtype=f32 if values.ndim == 1 else q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def spelled(number: int) -> str:
    """Return a token's text: a digit for the first ten, a word in brackets for the others."""
    return f"<{number}>" if number < 10 else "<" + "".join(chr(ord("a") + int(digit)) for digit in str(number)) + ">"


class Clock:
    """Adds up the processor's time in ``llama_decode`` by context, that of the first pass being the target's."""

    def __init__(self, owner: Any) -> None:
        self.seconds, self._decode = dict[int, float](), owner.llama_decode
        owner.llama_decode = self._timed

    def _timed(self, context: Any, batch: Any) -> Any:
        start, key = time.process_time(), getattr(context, "value", context)
        try:
            return self._decode(context, batch)
        finally:
            self.seconds[key] = self.seconds.get(key, 0.0) + time.process_time() - start

    def steps(self, steps: Iterator[int]) -> dict[str, float]:
        """Return milliseconds per step behind the first, which reads the prompt; a step gives what it accepted."""
        next(steps)
        start, before = time.process_time(), dict(self.seconds)
        accepted = list(steps)
        whole = time.process_time() - start
        passes = [seconds - before.get(key, 0.0) for key, seconds in self.seconds.items()]
        target, *drafts = (1000 * part / len(accepted) for part in passes)
        rest = 1000 * (whole - sum(passes)) / len(accepted)
        told = {"target_ms": target, "draft_ms": sum(drafts), "overhead_ms": rest}
        return {"steps": len(accepted), "accepted": sum(accepted)} | told


def steps_of(pair: Pair, clock: Clock, prompt: str, settings: dict[str, Any], tokens: int) -> dict[str, float]:
    """Return milliseconds per step of an answer."""
    given = {"seed": 0, "max_new_tokens": tokens, "num_speculative_tokens": PROPOSALS} | settings
    return clock.steps(outcome.num_accepted for outcome in stream(pair, prompt, **given))


def measure_alone(file: str, prompt: list[int], tokens: int) -> dict[str, float]:
    """Return milliseconds per token of llama-cpp-python's own greedy answer."""
    import llama_cpp

    clock = Clock(llama_cpp.llama_cpp)
    model = llama_cpp.Llama(file, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    return clock.steps(0 for _ in islice(model.generate(prompt, temp=0.0, repeat_penalty=1.0), tokens))


def measure(given: Namespace) -> dict[str, Any]:
    real = given.target is not None
    with tempfile.TemporaryDirectory() as folder:
        files = [given.target, given.draft]
        if not real:
            files = [write_random(Path(folder) / f"{layers}.gguf", layers) for layers in (given.layers, DRAFT_LAYERS)]
        pair = load_pair(*(f"{file}:context_size=512,threads=1" for file in files), kept_prompts=0)
        prompt = "".join(map(spelled, range(1000, 1000 + PROMPT_TOKENS)))
        prompt = as_chat_prompt(pair.tokenizer, QUESTION) if real else prompt
        clock = Clock(library())
        # warms up, the target first, and reads the vocabulary
        for each in (*ALONE.values(), WAYS["clamped:width=1, digits protected"]):
            steps_of(pair, clock, prompt, each, 12)
        ways = WAYS | ALONE if real else WAYS
        rows = [{"way": name} | steps_of(pair, clock, prompt, each, given.tokens) for name, each in ways.items()]
        if real:
            alone = measure_alone(str(given.target), list(pair.tokenizer(prompt).input_ids), given.tokens)
            rows.append({"way": "llama_cpp.Llama, temperature 0", **alone})
    return {"rows": rows, "proposals": PROPOSALS}


def shown(result: Any) -> dict[str, str]:
    def share(row: Any) -> str:
        return f"{100 * row['overhead_ms'] / (row['target_ms'] + row['draft_ms'] + row['overhead_ms']):.1f} %"

    real = any(row["way"].startswith("llama_cpp") for row in result["rows"])
    return {"overhead_real" if real else "overhead": columns(result["rows"], {
        "way": "{way}", "target's pass, ms": "{target_ms:.1f}", "draft's passes, ms": "{draft_ms:.1f}",
        "all else, ms": "{overhead_ms:.1f}", "share of all else": share,
    })}  # fmt: skip


if __name__ == "__main__":
    results = RESULTS.with_stem("overhead_real") if "--target" in sys.argv else RESULTS
    study(
        __doc__, results, "studies/tables/laptop.md", measure, shown,
        tokens=(40, "of each answer"),
        layers=(LAYERS, "of the target with random weights"),
        target=(None, "a GGUF file of a chat model", {"type": Path}),
        draft=(None, "another one", {"type": Path}),
    )  # fmt: skip
