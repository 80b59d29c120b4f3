"""How many greedy answers stay the same when tokens are proposed, by engine and dtype: a table in docs/hugging_face.md.

    python -m studies.greedy_agreement.run transformers llama.cpp      a quarter of an hour on one core
    .venv-vllm/bin/python -m studies.greedy_agreement.run vllm         the same for vLLM, in its own environment
    python -m studies.greedy_agreement.run --only-render               only the table, from the result file

The bundled target answers each problem alone, by the engine's own greedy decoding, and then with proposals. Where an
answer differs, the float32 target's log-probabilities of the two first tokens that differ say how near a tie they were.
"""

from __future__ import annotations

import os
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from cactus_decoding import Pair, generate, load_pair, zoo
from cactus_decoding.engines.transformers.loader import load_model
from cactus_decoding.zoo.word_problems import word_problems
from scripts.pages import table
from scripts.results import read
from studies.study import study

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
def gguf(kind: str, cache: str, draft: str) -> Iterator[tuple[Pair, Answer]]:
    """Yield the bundled target and a draft as GGUF files, and llama-cpp-python's own greedy decoding of that target."""
    from llama_cpp import Llama

    from scripts.bundled_gguf import write_bundled

    stored = {"float32": 0, "float16": 1}[cache]
    settings: dict[str, Any] = {"type_k": stored, "type_v": stored, "flash_attn": cache == "float16", "verbose": False}
    with tempfile.TemporaryDirectory() as folder:
        target, proposes = (write_bundled(name, Path(folder), kind) for name in ("target", draft))
        own = Llama(str(target), n_ctx=512, n_threads=1, **settings)
        pair = load_pair(f"{target}:cache={cache}", proposes)

        def alone(prompt: str) -> list[int]:
            ids = own.tokenize(prompt.encode(), add_bos=True, special=True)
            answer: list[int] = []
            for token in islice(own.generate(ids, temp=0.0), MAX_NEW_TOKENS):
                answer.append(token)
                if token in pair.stop_token_ids:
                    break
            return answer

        yield pair, alone


@contextmanager
def llama_cpp(dtype: str) -> Iterator[dict[str, Answer]]:
    """Yield llama-cpp-python's own greedy decoding, and this package on the same GGUF file."""
    with gguf(dtype, dtype, "draft") as (pair, alone):
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


def compared(engine: str, dtype: str, problems: int) -> list[dict[str, Any]]:
    """Return, for each way to propose, how many answers are the engine's own, and how near ties the others were."""
    exact = load_model("target", zoo.path("target"), torch.float32, torch.device("cpu"))
    tokenizer = load_pair().tokenizer
    with ENGINES[engine][0](dtype) as ways:
        alone = ways.pop("alone")
        about = {"engine": engine, "dtype": dtype, "problems": problems}
        rows: dict[str, dict[str, Any]] = {way: {"way": way, "equal": 0, "gaps": [], **about} for way in ways}
        for problem in islice(word_problems("validation"), problems):
            expected = [*alone(problem.prompt)]
            for way, answer in ways.items():
                found = [*answer(problem.prompt)]
                # an engine may leave out the token that ends a text
                if found[: len(expected)] == expected[: len(found)]:
                    rows[way]["equal"] += 1
                else:
                    nats = gap(exact, tokenizer(problem.prompt).input_ids, found, expected)
                    rows[way]["gaps"].append(round(nats, 6))
    return [*rows.values()]


def measure(given: Namespace) -> dict[str, Any]:
    """Measure the named engines, and keep what is known of the others."""
    kept = read(given.results)["rows"] if given.results.exists() else []
    rows = [row for row in kept if row["engine"] not in given.engines]
    for engine in given.engines:
        for dtype in ENGINES[engine][1]:
            rows += compared(engine, dtype, given.problems)
    return {"rows": sorted(rows, key=lambda row: [*ENGINES].index(row["engine"])), "max_new_tokens": MAX_NEW_TOKENS}


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


def engine_named(name: str) -> str:
    if name not in ENGINES:
        raise ArgumentTypeError(f"there is no engine {name!r}; choose from {', '.join(ENGINES)}")
    return name


if __name__ == "__main__":
    several = {"nargs": "*", "positional": True, "default": [], "metavar": "ENGINE", "type": engine_named}
    study(
        __doc__, RESULTS, "hugging_face.md", measure, shown, needed=["engines"],
        engines=(None, f"of {', '.join(ENGINES)}", several), problems=60,
    )  # fmt: skip
