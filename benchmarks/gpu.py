"""Correctness and speed on one GPU, in at most eight minutes, without network: `python benchmarks/gpu.py`

First the same decisions are asked of the GPU and of the CPU: batched verification and the walk, all rules, in float32
and bfloat16; and the bundled pair's greedy answers.
Then speed is measured on twins of the bundled pair (see twins.py), one request at a time, by draft_lengths.py: plain,
transformers' `generate` and assisted generation, and rules at 1 to 15 proposals.

It writes gpu.json and gpu.svg into --output, and prints the table. `--device cpu --small` tries the command itself in
a minute: its times mean nothing.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from draft_lengths import Answers, as_table, measured, summary
from draw_draft_lengths import picture
from pairing import asked, mistaken, parse, write
from torch import Tensor
from twins import SHAPES, twin_pair

from cactus_decoding import Request, SamplingParams, generate, load_pair, parse_rule
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.rules import RULES
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.core.sampling.rows import draw
from cactus_decoding.core.types import Proposal, StepRows
from cactus_decoding.core.verification.batched import _decide
from cactus_decoding.core.verification.tree import RandomNumbers
from cactus_decoding.core.verification.walk import walk
from cactus_decoding.zoo.word_problems import word_problems

DTYPES = (torch.float32, torch.bfloat16)
WAYS: dict[str, dict[str, object]] = {
    "walk": {},
    "walk, 1 nat": {"budget": 1.0},
    "walk, digits protected": {"protect": "digits"},
    "walk, block": {"verification": "block"},
    "walk, top-k 20, top-p 0.95": {"top_k": 20, "top_p": 0.95},
    "walk, temperature 0": {"temperature": 0},
}
LEAST_AGREEMENT = 0.98
"""Of decisions on each way: two devices round differently, which a draw next to a border tells."""
CPU = torch.device("cpu")
Problem = tuple[Tensor, Proposal, Tensor]
"""The target's logits, what a draft proposes, and random numbers, all on the CPU."""


def spellings() -> list[str]:
    """Return every registered rule, with each of its families at a knob in the middle, or as it is usually spelled."""
    found = list[str]()
    for name, rule in RULES.items():
        swept = [family.spell(family.knobs(3)[1]) for family in rule.families]
        found += swept or [preset.spelling for preset in rule.presets[:1]] or [name]
    return found


def problems(vocabulary: int, count: int, proposals: int, dtype: torch.dtype) -> Iterator[Problem]:
    """Yield problems whose draft is a noisy copy of the target."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        logits = torch.randn(proposals + 1, vocabulary, generator=generator) * 3
        noise = torch.randn(proposals, vocabulary, generator=generator)
        rows = (logits[:-1] + noise).to(dtype).float().softmax(-1)
        token_ids = draw(rows, torch.rand(proposals, dtype=torch.float64, generator=generator)).tolist()
        numbers = torch.rand(proposals + 1, dtype=torch.float64, generator=generator)
        yield logits.to(dtype), Proposal(token_ids, rows), numbers


def batched(rule: str, asked: Sequence[Problem], device: torch.device) -> list[Any]:
    """Return how many proposals are accepted, the next token and what is relaxed, of each problem of a batch."""
    to_probs = SamplingFn(SamplingParams())
    target = torch.stack([to_probs(logits.to(device), []) for logits, _, _ in asked])
    draft = torch.stack([proposal.probs for _, proposal, _ in asked if proposal.probs is not None]).to(device)
    ids = torch.tensor([proposal.token_ids for _, proposal, _ in asked], device=device)
    used = torch.full((len(asked),), ids.shape[1], device=device)
    numbers = torch.stack([each for _, _, each in asked]).to(device)
    found = _decide(parse_rule(rule), target, draft, ids, used, numbers)
    return [*zip(*(part.tolist() for part in found), strict=True)]


def walked(request: Request, pair: Pair, asked: Sequence[Problem], device: torch.device) -> list[Any]:
    """Return the tokens of each problem's step, and what is relaxed."""
    to_probs, found = SamplingFn(request.sampling), []
    fitted = request.policy.fit(pair.tokenizer, asked[0][0].shape[-1])
    verifier = request.verifier(to_probs, to_probs, request.sampling, fitted)
    for logits, proposal, numbers in asked:
        assert proposal.probs is not None
        # a greedy draft has no probabilities
        probs = proposal.probs.to(device) if request.sampling.temperature else None
        moved = Proposal(proposal.token_ids, probs)
        rows = StepRows(logits.to(device), [0, *proposal.token_ids], moved, to_probs, to_probs)
        drawn = RandomNumbers(numbers, len(proposal.token_ids))
        _, outcome = walk(verifier.scheme, verifier.policy, verifier.begin([0]), rows, drawn, request.sampling)
        found.append((outcome.all_token_ids, [visit.relaxed for visit in outcome.visits]))
    return found


def decisions(device: torch.device, pair: Pair, vocabulary: int, count: int) -> list[dict[str, Any]]:
    """Return what share of decisions the device and the CPU agree on, by dtype, way and rule."""
    rows = []
    for dtype in DTYPES:
        asked = [*problems(vocabulary, count, 7, dtype)]
        for rule in spellings():
            ways: dict[str, Callable[[torch.device], list[Any]]] = {"batched": partial(batched, rule, asked)}
            if isinstance(parse_rule(rule), GreedyRule):  # it is for temperature 0, where the walk has it
                ways = {}
            for way, settings in WAYS.items():
                try:
                    ways[way] = partial(walked, Request.from_dict({"rule": rule, **settings}), pair, asked)
                except ValueError:  # such as block verification with a rule that depends on the drafted token
                    continue
            for way, decide in ways.items():
                same = [one == other for one, other in zip(decide(device), decide(CPU), strict=True)]
                row = {"dtype": str(dtype)[6:], "way": way, "rule": rule, "same": sum(same), "of": len(same)}
                rows.append(row)
    return rows


def greedy_answers(device: torch.device, count: int) -> dict[str, Any]:
    """Return how many of the bundled pair's greedy answers in float32 are the CPU's, token for token."""
    pairs = [load_pair(dtype=torch.float32, device=place, kept_prompts=0) for place in (device, "cpu")]
    texts = [problem.prompt for problem in islice(word_problems("test", seed=1), count)]
    answers = [[generate(pair, text, temperature=0, max_new_tokens=200).token_ids for text in texts] for pair in pairs]
    return {"same": sum(ours == theirs for ours, theirs in zip(*answers, strict=True)), "of": count}


def speed(pair: Pair, given: Namespace, seconds: float) -> dict[str, Any]:
    """Return the answers that there was time for, and their summary."""
    texts = [problem.prompt for problem in islice(word_problems("test", seed=1), given.prompts)]
    answers: Answers = {}
    for _ in measured(pair, given, texts, answers, seconds):
        pass
    return {"answers": answers, "summary": summary(answers) if answers else None}


def shares(rows: Sequence[dict[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return how many decisions are the CPU's, and how many were asked, by dtype and way."""
    same, of = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for row in rows:
        same[row["dtype"], row["way"]] += row["same"]
        of[row["dtype"], row["way"]] += row["of"]
    return {key: (same[key], of[key]) for key in of}


def agree(found: dict[str, Any]) -> bool:
    """Whether the devices agree as far as rounding allows."""
    greedy = found["greedy_answers"]
    alike = (same >= LEAST_AGREEMENT * of for same, of in shares(found["decisions"]).values())
    return all(alike) and greedy["same"] == greedy["of"]


def main() -> None:
    """Check, measure, print, draw and write; the exit code is 1 where devices disagree."""
    began = time.perf_counter()
    given = parse(
        __doc__,
        device="cuda",
        minutes=(7.5, "begin nothing that would end later"),
        proposals=[1, 3, 5, 7, 11, 15],
        others=["generate", "assisted|3", "assisted|7"],
        rules=["lossless", "Cactus 1", "clamped 2, digits protected"],
        prompts=12,
        tokens=200,
        small=(False, "small twins and rows, two prompts: to try the command"),
        output=(Path("gpu"), "a folder"),
    )
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        mistaken("this machine has no GPU that PyTorch can use: give --device cpu --small to try the command")
    pairs, dtype, vocabulary, count = [("1B", "0.1B"), ("8B", "0.5B")], torch.bfloat16, 151_936, 8
    if given.small:
        pairs, dtype, vocabulary, count = [("small", "tiny")], torch.float32, 1200, 3
        given.prompts, given.tokens, given.proposals, given.others = 2, 16, [1, 3], ["generate", "assisted|3"]
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {"decisions": decisions(device, load_pair(device="cpu"), vocabulary, count), "speed": {}}
    print("decisions that are the CPU's, of all rules:")
    for (of_dtype, way), (same, of) in shares(found["decisions"]).items():
        print(f"  {of_dtype:9} {way:28} {same} of {of}", flush=True)
    print("not all of:", *sorted({row["rule"] for row in found["decisions"] if row["same"] < row["of"]}))
    found["greedy_answers"] = greedy_answers(device, 2 if given.small else 8)
    print("greedy answers in float32 that are the CPU's:", found["greedy_answers"], flush=True)
    end = began + 60 * given.minutes
    given.output.mkdir(parents=True, exist_ok=True)
    for i, (target, draft) in enumerate(pairs):
        pair = twin_pair(SHAPES[target], SHAPES[draft], dtype=dtype, device=device)
        row = speed(pair, given, (end - time.perf_counter()) / (len(pairs) - i))
        found["speed"][f"{target} with {draft}"] = row
        print(f"\n{target} with {draft}, {str(dtype)[6:]}")
        print(as_table(row["summary"]) if row["summary"] else "there was no time for any prompt", flush=True)
        del pair
        write(given.output / "gpu.json", {"results": found}, asked(given))
    drawn = {name: row["summary"] for name, row in found["speed"].items() if row["summary"]}
    if drawn:
        write_atomically(given.output / "gpu.svg", picture(drawn))
    print(f"\n{time.perf_counter() - began:.0f} s; written to {given.output}/gpu.json and gpu.svg")
    raise SystemExit(0 if agree(found) else 1)


if __name__ == "__main__":
    main()
