"""What coupled verification costs beside token and block verification: tokens per step and time.

    python -m studies.coupling.cost                                          # the bundled pair on word problems
    python -m studies.coupling.cost target.gguf draft.gguf --data FOLDER     # in chat, five kinds of text

The target writes answers by itself at temperature 1. Along them both models' probabilities say exactly how often a
proposal would be kept, and from that how many tokens a step makes on average. Steps are then timed, by the processor's
clock on one thread: each prompt is answered in every way in turn. FOLDER is that of `benchmarks/never_slower.py`.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.never_slower import prompts
from cactus_decoding import generate, load_pair, stream
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.lab.evaluation.intervals import ratio_of_sums
from cactus_decoding.lab.evaluation.score import steps_taken
from scripts.results import asked, parse, read, write
from studies.real_pair.collect import rows_along

RESULTS = Path(__file__).parent / "results" / "cost.json"
LENGTHS = (3, 6, 7)
Step = tuple[int, int, float]
"""Proposed, tokens, milliseconds."""


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


KEPT: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "token": overlap, "coupled": agreement, "two draws": lambda target, draft: (target * draft).sum(-1),
}  # fmt: skip
"""How often a proposal is kept, by the way that decides."""


def chances(pair: Pair, prompt: str, tokens: int, seed: int) -> dict[str, Tensor]:
    """Return, for each way to keep a proposal, how often it is kept at the places of one answer, ``[tokens]``."""
    response = generate(pair, prompt, num_speculative_tokens=0, max_new_tokens=tokens, seed=seed)
    parts = [
        [kept(target, draft) for kept in KEPT.values()]
        for target, draft in rows_along(pair, response.prompt_token_ids, response.token_ids)
    ]
    return dict(zip(KEPT, map(torch.cat, zip(*parts, strict=True)), strict=True))


def tokens_per_step(texts: Sequence[Mapping[str, Tensor]]) -> dict[str, Any]:
    """Return acceptance, and by number of proposals the tokens per step and their ratio to those of ``token``."""
    problem = torch.cat([torch.full((len(each["token"]),), i) for i, each in enumerate(texts)])
    whole = {name: torch.cat([each[name] for each in texts]) for name in texts[0]}
    found: dict[str, Any] = {"positions": len(problem), "texts": len(texts)}
    found["acceptance"] = {name: round(float(each.mean()), 4) for name, each in whole.items()}
    for length in LENGTHS:
        steps = {name: steps_taken(each, problem, length) for name, each in whole.items()}
        made = {name: round(len(problem) / float(each.sum()), 3) for name, each in steps.items()}
        found[f"tokens per step of {length}"] = made
        ratio = ratio_of_sums(steps["token"].numpy(), steps["coupled"].numpy())
        found[f"coupled over token, {length}"] = [round(each, 4) for each in ratio]
    return found


def timed(pair: Pair, prompt: str, tokens: int, seed: int) -> Iterator[tuple[str, list[Step]]]:
    """Yield the steps of an answer for each way and number of proposals."""
    for length in LENGTHS:
        for how in ("token", "block", "coupled"):
            settings: dict[str, Any] = {"num_speculative_tokens": length, "verification": how, "seed": seed}
            steps, clock = list[Step](), time.process_time()
            for outcome in stream(pair, prompt, max_new_tokens=tokens, **settings):
                before, clock = clock, time.process_time()
                steps.append((outcome.num_drafted, outcome.num_emitted, 1e3 * (clock - before)))
            yield f"{how}, {length}", steps[1:]  # the first reads the prompt


def summary(length: int, steps: Sequence[Step]) -> dict[str, float]:
    """Return tokens of a step, and the median time of those with as many proposals as were asked for."""
    tokens = sum(made for _, made, _ in steps) / len(steps)
    taken = statistics.median(milliseconds for proposed, _, milliseconds in steps if proposed == length)
    return {"steps": len(steps), "tokens per step": round(tokens, 3), "milliseconds": round(taken, 3)}


def main() -> None:
    """Measure one pair, and add it to the result file."""
    several = {"nargs": "*", "positional": True, "default": []}
    given = parse(
        __doc__,
        models=(None, "target and draft; the bundled pair by default", several),
        data=(None, {"type": Path}),
        prompts=(40, "of each kind of text"),
        timed=(20, "of these prompts are also answered by the clock"),
        tokens=(96, "of an answer"),
        results=RESULTS,
    )
    torch.set_num_threads(1)
    pair = load_pair(*(f"{each}:threads=1" for each in given.models))
    questions = [each for texts in prompts(given.data, given.prompts, bundled=pair.bundled).values() for each in texts]
    texts, seen = list[dict[str, Tensor]](), dict[str, list[Step]]()
    for seed, text in enumerate(questions):
        prompt = text if pair.bundled else as_chat_prompt(pair.tokenizer, text)
        texts.append(chances(pair, prompt, given.tokens, seed))
        if seed % max(len(questions) // given.timed, 1) == 0:
            for way, steps in timed(pair, prompt, given.tokens, seed):
                seen.setdefault(way, []).extend(steps)
        print(f"{seed + 1}/{len(questions)}", flush=True)
    found = tokens_per_step(texts)
    found["steps"] = {way: summary(int(way.split()[-1]), steps) for way, steps in seen.items()}
    print(json.dumps(found, indent=1))
    names = [Path(each).name for each in given.models] or ["bundled", "bundled:worded"]
    found["provenance"] = provenance(asked(given) | {"models": names})
    stored = read(given.results) if given.results.exists() else {}
    write(given.results, stored | {" + ".join(names): found}, None)


if __name__ == "__main__":
    main()
