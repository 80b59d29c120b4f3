"""What coupled verification costs beside token and block verification: tokens per step and time.

    python -m studies.coupling.cost                                          # the bundled pair on word problems
    python -m studies.coupling.cost target.gguf draft.gguf --data FOLDER     # in chat, five kinds of text

The target writes answers by itself at temperature 1. Along them both models' probabilities say exactly how often a
proposal would be kept, and from that how many tokens a step makes on average. Steps are then timed, by the processor's
clock on one thread: each prompt is answered in every way in turn. FOLDER is that of `benchmarks/never_slower.py`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.never_slower import prompts
from cactus_decoding import generate, load_pair, stream
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.lab.evaluation.intervals import ratio_of_sums
from cactus_decoding.lab.evaluation.score import steps_taken

RESULT = Path(__file__).parent / "results" / "cost.json"
LENGTHS = (3, 6, 7)
_ROWS = 16


def overlap(target: Tensor, draft: Tensor) -> Tensor:
    """Return how often the lossless test keeps a proposal, for probabilities ``[..., vocabulary]``."""
    return torch.minimum(target, draft).sum(-1)


def agreement(target: Tensor, draft: Tensor) -> Tensor:
    r"""Return how often two rows choose the same token by shared noise, for probabilities ``[..., vocabulary]``.

    .. math:: \sum_i 1 / \sum_j \max(p_j / p_i, q_j / q_i)

    Sorted by p/q, the greater quotient is that of p for all tokens up to i, and that of q for all after it.
    """
    order = (draft / target).nan_to_num(0.0, posinf=torch.inf).argsort(-1, descending=True)
    q, p = target.gather(-1, order), draft.gather(-1, order)
    after = q.flip(-1).cumsum(-1).flip(-1) - q
    return (1 / (p.cumsum(-1) / p + after / q)).nan_to_num(0.0).sum(-1)


@torch.inference_mode()
def chances(pair: Pair, prompt: str, tokens: int, seed: int) -> dict[str, Tensor]:
    """Return, for each way to keep a proposal, how often it is kept at the places of one answer, ``[tokens]``."""
    response = generate(pair, prompt, num_speculative_tokens=0, max_new_tokens=tokens, seed=seed)
    start, text = len(response.prompt_token_ids), [*response.prompt_token_ids, *response.token_ids]
    caches: list[Any] = [pair.target, pair.drafter.model_cache]  # type: ignore[attr-defined]
    for cache in caches:
        cache.reset()
        cache.append(text[: start - 1], rows=1)
    found: dict[str, list[Tensor]] = {"token": [], "coupled": [], "two draws": []}
    for begin in range(start - 1, len(text) - 1, _ROWS):
        block = text[begin : min(begin + _ROWS, len(text) - 1)]
        target, draft = (
            cache.append(block, rows=len(block))[:, : pair.target.vocabulary_size].double().softmax(-1)
            for cache in caches
        )
        for name, kept in (("token", overlap), ("coupled", agreement), ("two draws", _matching)):
            found[name].append(kept(target, draft))
    for cache in caches:
        cache.reset()
    return {name: torch.cat(parts) for name, parts in found.items()}


def _matching(target: Tensor, draft: Tensor) -> Tensor:
    return (target * draft).sum(-1)


def tokens_per_step(texts: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """Return acceptance, and by number of proposals the tokens per step and their ratio to those of ``token``."""
    problem = torch.cat([torch.full((len(each["token"]),), i) for i, each in enumerate(texts)])
    whole = {name: torch.cat([each[name] for each in texts]) for name in texts[0]}
    found: dict[str, Any] = {"positions": len(problem), "texts": len(texts)}
    found["acceptance"] = {name: round(float(each.mean()), 4) for name, each in whole.items()}
    for length in LENGTHS:
        steps = {name: steps_taken(each, problem, length) for name, each in whole.items()}
        found[f"tokens per step of {length}"] = {
            name: round(len(problem) / float(each.sum()), 3) for name, each in steps.items()
        }
        ratio = ratio_of_sums(steps["token"].numpy(), steps["coupled"].numpy())
        found[f"coupled over token, {length}"] = [round(each, 4) for each in ratio]
    return found


def timed(pair: Pair, prompt: str, tokens: int, seed: int) -> Iterator[tuple[str, list[tuple[int, int, float]]]]:
    """Yield, for each way and number of proposals, the steps of an answer: proposed, tokens, milliseconds."""
    for length in LENGTHS:
        for how in ("token", "block", "coupled"):
            asked: dict[str, Any] = {"num_speculative_tokens": length, "verification": how, "seed": seed}
            steps, clock = list[tuple[int, int, float]](), time.process_time()
            for outcome in stream(pair, prompt, max_new_tokens=tokens, **asked):
                before, clock = clock, time.process_time()
                steps.append((outcome.num_drafted, outcome.num_emitted, 1e3 * (clock - before)))
            yield f"{how}, {length}", steps[1:]  # the first reads the prompt


def main() -> None:
    """Measure one pair, and add it to the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="target and draft; the bundled pair by default")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--prompts", type=int, default=40, help="of each kind of text")
    parser.add_argument("--timed", type=int, default=20, help="of these prompts are also answered by the clock")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer")
    given = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair(*(f"{each}:threads=1" for each in given.models))
    asked = [each for texts in prompts(given.data, given.prompts, bundled=pair.bundled).values() for each in texts]
    texts, seen = list[dict[str, Tensor]](), dict[str, list[tuple[int, int, float]]]()
    for seed, text in enumerate(asked):
        prompt = text if pair.bundled else as_chat_prompt(pair.tokenizer, text)
        texts.append(chances(pair, prompt, given.tokens, seed))
        if seed % max(len(asked) // given.timed, 1) == 0:
            for way, steps in timed(pair, prompt, given.tokens, seed):
                seen.setdefault(way, []).extend(steps)
        print(f"{seed + 1}/{len(asked)}", flush=True)
    found = tokens_per_step(texts)
    found["steps"] = {
        way: {
            "steps": len(steps),
            "tokens per step": round(sum(step[1] for step in steps) / len(steps), 3),
            "milliseconds": round(statistics.median(step[2] for step in steps if step[0] == int(way.split()[-1])), 3),
        }
        for way, steps in seen.items()
    }
    names = [Path(each).name for each in given.models] or ["bundled", "bundled:worded"]
    arguments = {"models": names, "prompts": given.prompts, "timed": given.timed, "tokens": given.tokens}
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    stored[" + ".join(names)] = found | {"provenance": provenance(arguments)}
    write_atomically(RESULT, json.dumps(stored, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
