"""How many greedy answers stay the same when tokens are proposed, by engine and dtype: a table in docs/hugging_face.md.

    python -m studies.greedy_agreement.run transformers llama.cpp      a quarter of an hour on one core
    .venv-vllm/bin/python -m studies.greedy_agreement.run vllm         the same for vLLM, in its own environment
    python -m studies.greedy_agreement.run                             only the table, from the result file

The bundled target answers each problem alone, by the engine's own greedy decoding, and then with proposals. Where an
answer differs, the float32 target's log-probabilities of the two first tokens that differ say how near a tie they were.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cactus_decoding import Pair, generate, load_pair, zoo
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.engines.transformers.engine import load_model
from cactus_decoding.zoo.word_problems import word_problems
from scripts.pages import ROOT, put, table
from scripts.results import parser, read, write

RESULTS = Path(__file__).with_name("results") / "greedy_agreement.json"
PROPOSALS = (1, 3, 7, 15)
MAX_NEW_TOKENS = 200
ROUNDING = 0.05
"""In nats: how far apart the two-server mode of `cactus-conform` lets two tokens be that differ by rounding."""
Answer = Callable[[str], Sequence[int]]


def drafted(pair: Pair, count: int) -> Answer:
    options: dict[str, Any] = {"temperature": 0, "max_new_tokens": MAX_NEW_TOKENS, "num_speculative_tokens": count}
    return lambda prompt: generate(pair, prompt, **options).token_ids


@contextmanager
def transformers(dtype: str) -> Iterator[dict[str, Answer]]:
    """Yield `generate`, its assisted generation, and this package on the same model."""
    pair = load_pair(draft="bundled:draft", dtype=getattr(torch, dtype))
    model: Any = pair.target.model

    def own(prompt: str, **options: Any) -> list[int]:
        ids = pair.tokenizer(prompt, return_tensors="pt").input_ids
        output = model.generate(ids, do_sample=False, max_new_tokens=MAX_NEW_TOKENS, **options)
        return output[0, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

    ways: dict[str, Answer] = {"alone": own, "assisted": partial(own, assistant_model=pair.drafter.model)}
    yield ways | {f"proposals {count}": drafted(pair, count) for count in PROPOSALS}


@contextmanager
def llama_cpp(dtype: str) -> Iterator[dict[str, Answer]]:
    """Yield llama-cpp-python's own greedy decoding, and this package on the same GGUF file."""
    from llama_cpp import Llama

    from scripts.bundled_gguf import write_bundled

    cache = {"float32": 0, "float16": 1}[dtype]
    with tempfile.TemporaryDirectory() as folder:
        target, draft = (write_bundled(name, Path(folder), dtype) for name in ("target", "draft"))
        flash = dtype == "float16"
        settings: dict[str, Any] = {"type_k": cache, "type_v": cache, "flash_attn": flash, "verbose": False}
        own = Llama(str(target), n_ctx=512, n_threads=1, **settings)
        pair = load_pair(f"{target}:cache={dtype}", draft)

        def alone(prompt: str) -> list[int]:
            ids = own.tokenize(prompt.encode(), add_bos=True, special=True)
            answer: list[int] = []
            for token in islice(own.generate(ids, temp=0.0), MAX_NEW_TOKENS):
                answer.append(token)
                if token in pair.stop_token_ids:
                    break
            return answer

        yield {"alone": alone} | {f"proposals {count}": drafted(pair, count) for count in PROPOSALS}


@contextmanager
def vllm(dtype: str) -> Iterator[dict[str, Answer]]:
    """Yield vLLM's greedy decoding without and with its own lossless speculation."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

    def answers(count: int) -> Answer:
        from vllm import LLM, SamplingParams

        draft = {"method": "draft_model", "model": str(zoo.path("draft")), "num_speculative_tokens": count}
        engine = LLM(
            str(zoo.path("target")), dtype=dtype, speculative_config=draft if count else None, max_num_seqs=1,
            generation_config="vllm", enable_prefix_caching=False,
        )  # fmt: skip
        sampling = SamplingParams(temperature=0, max_tokens=MAX_NEW_TOKENS)
        return lambda prompt: [*engine.generate(prompt, sampling, use_tqdm=False)[0].outputs[0].token_ids]

    yield {"alone": answers(0)} | {f"proposals {count}": answers(count) for count in PROPOSALS}


ENGINES = {
    "transformers": (transformers, ("float32", "bfloat16")),
    "llama.cpp": (llama_cpp, ("float32", "float16")),
    "vllm": (vllm, ("float32", "bfloat16")),
}


def gap(exact: Any, prompt_ids: Sequence[int], answer: Sequence[int], alone: Sequence[int]) -> float:
    """Return how far apart in nats the float32 target finds the first two tokens in which answers differ."""
    place = next(index for index, pair in enumerate(zip(answer, alone, strict=False)) if pair[0] != pair[1])
    with torch.inference_mode():
        row = exact(torch.tensor([[*prompt_ids, *alone[:place]]])).logits[0, -1].double().log_softmax(-1)
    return float((row[answer[place]] - row[alone[place]]).abs())


def measure(engine: str, dtype: str, problems: int, seed: int) -> list[dict[str, Any]]:
    """Return, for each way to propose, how many answers are the engine's own, and how near ties the others were."""
    exact = load_model("target", zoo.path("target"), torch.float32, torch.device("cpu"))
    tokenizer = load_pair().tokenizer
    rows: dict[str, dict[str, Any]] = {}
    with ENGINES[engine][0](dtype) as ways:
        for problem in islice(word_problems("validation", seed=seed), problems):
            alone = [*ways["alone"](problem.prompt)]
            for way, answer in ways.items():
                if way == "alone":
                    continue
                row = rows.setdefault(way, {"engine": engine, "dtype": dtype, "way": way, "equal": 0, "gaps": []})
                found = [*answer(problem.prompt)]
                if found[: len(alone)] == alone[: len(found)]:  # an engine may leave out the token that ends a text
                    row["equal"] += 1
                else:
                    row["gaps"].append(round(gap(exact, tokenizer(problem.prompt).input_ids, found, alone), 6))
    return [row | {"problems": problems} for row in rows.values()]


def shown(result: Any) -> dict[str, str]:
    """Return the table: answers that are the engine's own, by number of proposals, and how near ties others were."""
    heads = ["assisted", *(f"proposals {count}" for count in PROPOSALS)]
    titles = ["engine", "its own assisted generation", *(f"{count} proposed" for count in PROPOSALS), "largest gap"]
    lines = []
    for engine, dtype in dict.fromkeys((row["engine"], row["dtype"]) for row in result["rows"]):
        found = {row["way"]: row for row in result["rows"] if (row["engine"], row["dtype"]) == (engine, dtype)}
        cells = [f"{found[way]['equal']} of {found[way]['problems']}" if way in found else "" for way in heads]
        gaps = [each for row in found.values() for each in row["gaps"]]
        lines.append([f"{engine}, {dtype}", *cells, f"{max(gaps):.3f} nats" if gaps else "none"])
    return {"agreement": table(titles, lines)}


def main() -> None:
    """Measure the named engines, keep the result file, and put the table on the page."""
    page = ROOT / "docs" / "hugging_face.md"
    engines = (None, f"of {', '.join(ENGINES)}", {"nargs": "*", "positional": True, "default": [], "metavar": "ENGINE"})
    made = parser(__doc__, engines=engines, problems=60, seed=0, results=RESULTS, page=page, only_render=False)
    given = made.parse_args()
    if unknown := set(given.engines) - set(ENGINES):
        made.error(f"there is no engine {sorted(unknown)[0]!r}; choose from {', '.join(ENGINES)}")
    kept = read(given.results) if given.results.exists() else {"rows": [], "provenance": {}}
    arguments = {"problems": given.problems, "seed": given.seed, "max_new_tokens": MAX_NEW_TOKENS}
    for engine in given.engines:
        rows = [row for dtype in ENGINES[engine][1] for row in measure(engine, dtype, given.problems, given.seed)]
        merged = [*(row for row in kept["rows"] if row["engine"] != engine), *rows]
        kept["rows"] = sorted(merged, key=lambda row: [*ENGINES].index(row["engine"]))
        kept["provenance"] |= {engine: provenance(arguments)}
        write(given.results, kept, None)
    put(given.page, shown(kept))


if __name__ == "__main__":
    main()
