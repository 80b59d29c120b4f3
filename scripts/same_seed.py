"""Ask random requests with coupled verification and with plain sampling, and count those whose texts part.

    python -m scripts.same_seed --output docs/results/same_seed.json                                  # the bundled pair
    python -m scripts.same_seed target-float32.gguf worded-float32.gguf --at-once 4 --output FILE
    python -m scripts.same_seed target.gguf draft.gguf --chat --requests 40 --tokens 48 --output FILE

The second names files of `scripts/bundled_gguf.py`. What the output file holds of other models stays there.

A request has a prompt, a seed, a drafter, a draft length or (in transformers) a tree, and sampling settings, all drawn.
It is first answered without proposals, alone; then with proposals, ``--at-once`` of them at the same time, on caches
that hold what they answered before. Texts may part where rounding decides: where the scores of the two tokens, or a cut
of top-k, top-p or min-p, are within `TIE` of each other. Every other difference is an error of ours, unless the model's
weights are quantised.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch

from benchmarks.never_slower import CHAT
from cactus_decoding import SamplingParams, generate, load_pair
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.sampling.noise import SharedNoise
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import PairPool
from cactus_decoding.zoo.word_problems import word_problems
from scripts.results import asked, parse, read, write

TIE = 1e-4
LENGTHS: list[dict[str, Any]] = [
    {"num_speculative_tokens": length} for length in (1, 5, "confidence:threshold=0.2", "auto")
]
TREES: list[dict[str, Any]] = [{"tree": "static=3.2.1"}, {"tree": "best_first,nodes=8,depth=4"}]
SAMPLINGS: list[dict[str, Any]] = [
    {}, {"temperature": 0.6}, {"temperature": 0.0}, {"top_k": 4}, {"top_p": 0.8, "temperature": 1.3}, {"min_p": 0.1},
]  # fmt: skip
LOOK_UPS = ("suffix", "ngram")
Drafters = Mapping[str, Callable[[Pair], Pair]]
DRAFTERS: Drafters = {
    "draft": lambda pair: pair,
    **{name: lambda pair, name=name: pair.with_draft(name) for name in LOOK_UPS},
}
Asked = tuple[str, str, dict[str, Any], dict[str, Any]]
"""Drafter, prompt, what is proposed and how tokens are sampled."""


def requests(count: int, seed: int, prompts: Sequence[str], drafters: Drafters, *, trees: bool) -> list[Asked]:
    """Return so many random requests."""
    rng, found = random.Random(seed), list[Asked]()
    for _ in range(count):
        name = rng.choice([*drafters])
        proposed = rng.choice([*LENGTHS, *(TREES if trees and name not in LOOK_UPS else ())])
        found.append((name, rng.choice(prompts), proposed, rng.choice(SAMPLINGS) | {"seed": rng.randrange(2**63)}))
    return found


def margin(
    logits: torch.Tensor, sampling: SamplingParams, noise: SharedNoise, place: int, tokens: Sequence[int]
) -> float:
    """Return how far two tokens' scores are apart, or a cut from what it cuts, whichever is nearer.

    ``logits`` are the target's at the place, ``[vocabulary]``. A score is log-probability plus noise, and that of
    temperature 0 a logit.
    """
    wide = logits.double().cpu()
    if sampling.temperature == 0:
        return abs(float(wide[tokens[0]] - wide[tokens[1]]))
    logs = (wide / sampling.temperature).log_softmax(-1)
    times = -np.log1p(-noise.uniforms(place, len(logs)))
    nearest = abs(float(logs[tokens[0]] - logs[tokens[1]]) - math.log(times[tokens[0]] / times[tokens[1]]))
    best = logs.sort(descending=True).values
    if sampling.top_k:
        nearest = min(nearest, float(best[sampling.top_k - 1] - best[sampling.top_k]))
        best = best[: sampling.top_k].log_softmax(-1)
    if sampling.top_p < 1:
        sums = best.exp().cumsum(-1)
        last = int((sums < sampling.top_p).sum())
        after = (best[last:-1] - best[last + 1 :])[:1].tolist()  # which of two equals is kept, rounding decides
        nearest = min(nearest, float((sums - sampling.top_p).abs().min()), *after)
    if sampling.min_p:
        nearest = min(nearest, float((best - best[0] - math.log(sampling.min_p)).abs().min()))
    return nearest


def compare(
    pool: PairPool, asked: Sequence[Asked], drafters: Drafters, tokens: int, verification: str = "coupled"
) -> dict[str, Any]:
    """Answer requests with proposals and without; return how many texts are equal, part at a tie, or part elsewhere."""
    made: dict[tuple[int, str], Pair] = {}

    def drafted(name: str, prompt: str, proposed: dict[str, Any], sampling: dict[str, Any]) -> Any:
        with pool.take([], Event()) as pair:
            key = id(pair), name  # a seat answers one request at a time
            if key not in made:
                made[key] = drafters[name](pair)
            return generate(made[key], prompt, **proposed, **sampling, verification=verification, max_new_tokens=tokens)

    alone = pool.pairs[0]
    plain = [
        generate(alone, prompt, num_speculative_tokens=0, verification="coupled", max_new_tokens=tokens, **sampling)
        for _, prompt, _, sampling in asked
    ]
    with ThreadPoolExecutor(len(pool.pairs)) as threads:
        found = list(threads.map(lambda each: drafted(*each), asked))
    counts: dict[str, Any] = {"requests": len(asked), "equal": 0, "tied": 0, "apart": [], "accepted": 0, "tokens": 0}
    for request, first, second in zip(asked, plain, found, strict=True):
        counts["accepted"] += second.metrics.accepted
        counts["tokens"] += len(second.token_ids)
        if first.token_ids == second.token_ids:
            counts["equal"] += 1
            continue
        name, _, proposed, settings = request
        both = zip(first.token_ids, second.token_ids, strict=False)
        at = next((place for place, (one, other) in enumerate(both) if one != other), None)
        near = math.inf  # where one text is the beginning of the other
        if at is not None:
            text = [*first.prompt_token_ids, *first.token_ids[:at]]
            alone.target.reset()
            logits = alone.target.append(text, rows=1)[0]
            sampling = SamplingParams(**{key: value for key, value in settings.items() if key != "seed"})
            tokens_there = first.token_ids[at], second.token_ids[at]
            near = margin(logits, sampling, SharedNoise(settings["seed"]), len(text), tokens_there)
        if near < TIE:
            counts["tied"] += 1
        else:
            counts["apart"].append({"drafter": name, "at": at, "margin": near} | proposed | settings)
    return counts


def main() -> None:
    given = parse(
        __doc__,
        models=([], "target and draft, GGUF files; the bundled pair by default",
                {"nargs": "*", "positional": True, "type": Path}),
        requests=1000,
        at_once=1,
        tokens=(100, "of an answer at most"),
        chat=(False, "ask questions in chat, not word problems"),
        seed=0,
        output=(None, {"type": Path, "required": True}),
    )  # fmt: skip
    torch.set_num_threads(1)
    if given.models:
        file = parse_gguf(str(given.models[0]))
        assert file is not None, "models must be GGUF files"
        settings = replace(file.settings, context_size=1024, threads=1)
        pool = PairPool.load(file._replace(settings=settings), str(given.models[1]), given.at_once, given.at_once)
    else:
        pool = PairPool([load_pair()])
    if given.chat:
        prompts = [as_chat_prompt(pool.pairs[0].tokenizer, text) for text in CHAT]
    else:
        prompts = [problem.prompt for problem in islice(word_problems("test"), 50)]
    random_requests = requests(given.requests, given.seed, prompts, DRAFTERS, trees=not given.models)
    counts = compare(pool, random_requests, DRAFTERS, given.tokens)
    names = [path.name for path in given.models] or ["bundled", "bundled:worded"]
    found = read(given.output) if given.output.exists() else {}
    found[" + ".join(names)] = counts | {"provenance": provenance(asked(given) | {"models": names})}
    write(given.output, found, None)
    print(f"{counts['equal']} of {counts['requests']} texts are equal, {counts['tied']} part at a tie, and "
          f"{len(counts['apart'])} elsewhere")  # fmt: skip


if __name__ == "__main__":
    main()
