"""What a step costs beside its forward passes, at a vocabulary of 151,936: a table in docs/studies/tables/laptop.md.

    python -m studies.laptop.overhead                 minutes, 800 MB of disk, and of memory
    python -m studies.laptop.overhead --only-render   the table from the result file

The target has the shape of Qwen3-0.6B and random weights, the draft its first four layers. All layers hold the same
numbers. Times are the processor's, of one thread, so that other work on the machine disturbs them less.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants

from cactus_decoding import Pair, load_pair, stream
from cactus_decoding.models.base import BaseCachedModel
from studies.tables import render, table_parser

VOCABULARY, WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_WIDTH, LAYERS, DRAFT_LAYERS = 151_936, 1024, 3072, 16, 8, 128, 28, 4
PROMPT_TOKENS, PROPOSALS = 64, 4
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


def write_random(path: Path, layers: int) -> Path:
    """Write a model of Qwen3-0.6B's shape with some layers; the same numbers whatever their count."""
    generator, q8_0, f32 = np.random.default_rng(0), GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32
    writer = GGUFWriter(path, "qwen3")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_name("random")
    writer.add_vocab_size(VOCABULARY)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([spelled(number) for number in range(VOCABULARY)])
    writer.add_token_types([TokenType.USER_DEFINED] * VOCABULARY)
    writer.add_token_merges(["a b"])

    def random(rows: int, columns: int, scale: float) -> np.ndarray:
        values = generator.standard_normal((rows, columns), dtype=np.float32) * (scale / columns**0.5)
        return quants.quantize(values, q8_0)

    # rows about as peaked as a language model's at temperature 1
    writer.add_tensor("token_embd.weight", random(VOCABULARY, WIDTH, 4.0), raw_dtype=q8_0)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32), raw_dtype=f32)
    inner, shared = HEADS * HEAD_WIDTH, KV_HEADS * HEAD_WIDTH
    shapes = {
        "attn_q": (inner, WIDTH), "attn_k": (shared, WIDTH), "attn_v": (shared, WIDTH), "attn_output": (WIDTH, inner),
        "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN),
    }  # fmt: skip
    weights = {name: random(*shape, 1.0) for name, shape in shapes.items()}
    norms = {"attn_norm": WIDTH, "ffn_norm": WIDTH, "attn_q_norm": HEAD_WIDTH, "attn_k_norm": HEAD_WIDTH}
    for layer in range(layers):
        for name, values in weights.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", values, raw_dtype=q8_0)
        for name, size in norms.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32), raw_dtype=f32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def spelled(number: int) -> str:
    """Return a token's text: a digit for the first ten, a word in brackets for the others."""
    return f"<{number}>" if number < 10 else "<" + "".join(chr(ord("a") + int(digit)) for digit in str(number)) + ">"


class Clock:
    """Adds up the processor's time in a model's passes."""

    def __init__(self, model: BaseCachedModel) -> None:
        self.seconds, self._append = 0.0, model.append
        model.append = self._timed  # type: ignore[method-assign]

    def _timed(self, *given: Any, **named: Any) -> Any:
        start = time.process_time()
        try:
            return self._append(*given, **named)
        finally:
            self.seconds += time.process_time() - start


def measure(pair: Pair, clocks: list[Clock], settings: dict[str, Any], tokens: int) -> dict[str, float]:
    """Return milliseconds per step behind the first, which reads the prompt."""
    prompt = "".join(map(spelled, range(1000, 1000 + PROMPT_TOKENS)))
    response = stream(pair, prompt, seed=0, max_new_tokens=tokens, num_speculative_tokens=PROPOSALS, **settings)
    next(response)
    start, before = time.process_time(), [clock.seconds for clock in clocks]
    steps = accepted = 0
    for outcome in response:
        steps, accepted = steps + 1, accepted + outcome.num_accepted
    passes = [clock.seconds - earlier for clock, earlier in zip(clocks, before, strict=True)]
    whole = time.process_time() - start
    target, draft, rest = (1000 * part / steps for part in (*passes, whole - sum(passes)))
    return {"steps": steps, "accepted": accepted, "target_ms": target, "draft_ms": draft, "overhead_ms": rest}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    lines = [
        "| way | target's pass, ms | draft's passes, ms | all else, ms | share of all else |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        parts = [row["target_ms"], row["draft_ms"], row["overhead_ms"]]
        cells = [f"{part:.1f}" for part in parts] + [f"{100 * parts[2] / sum(parts):.1f} %"]
        lines.append(f"| {row['way']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, write the result file, and put the table on the page."""
    results = Path(__file__).with_name("results") / "overhead.json"
    parser = table_parser(__doc__, results, "docs/studies/tables/laptop.md")
    parser.add_argument("--tokens", type=int, default=40, help="of each answer")
    parser.add_argument("--layers", type=int, default=LAYERS, help="of the target")
    given = parser.parse_args()

    def measured() -> list[dict[str, Any]]:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            files = [write_random(Path(folder) / f"{layers}.gguf", layers) for layers in (given.layers, DRAFT_LAYERS)]
            pair = load_pair(*(f"{file}:context_size=512,threads=1" for file in files), kept_prompts=0)
            clocks = [Clock(pair.target), Clock(pair.drafter._model)]
            # warms up, reads the vocabulary
            measure(pair, clocks, {"rule": "clamped:width=1", "protect": "digits"}, 12)
            return [{"way": name} | measure(pair, clocks, settings, given.tokens) for name, settings in WAYS.items()]

    arguments = {"tokens": given.tokens, "layers": given.layers, "proposals": PROPOSALS}
    render(given, "overhead", markdown, measured, arguments)


if __name__ == "__main__":
    main()
