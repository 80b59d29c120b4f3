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
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from draft_lengths import Answers, as_table, cells, contender, measure, requests_of, summary
from draw_draft_lengths import picture
from pairing import asked, parser, write
from torch import Tensor
from twins import SHAPES, twin_pair

from cactus_decoding import Request, SamplingParams, generate, load_pair, parse_rule
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.rules import RULES
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.core.sampling.rows import draw
from cactus_decoding.core.types import Proposal, StepRows, judges_untempered
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


def spellings() -> list[str]:
    """Return every registered rule, with each of its families at a knob in the middle."""
    return [name for rule in RULES for name in [f.spell(f.knobs(3)[1]) for f in RULES[rule].families] or [rule]]


def problems(
    vocabulary: int, count: int, proposals: int, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Proposal, Tensor]]:
    """Yield the target's logits, what a draft proposes that is a noisy copy of it, and random numbers; on the CPU."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        logits = torch.randn(proposals + 1, vocabulary, generator=generator) * 3
        noise = torch.randn(proposals, vocabulary, generator=generator)
        rows = (logits[:-1] + noise).to(dtype).float().softmax(-1)
        token_ids = draw(rows, torch.rand(proposals, dtype=torch.float64, generator=generator)).tolist()
        numbers = torch.rand(proposals + 1, dtype=torch.float64, generator=generator)
        yield logits.to(dtype), Proposal(token_ids, rows), numbers


def batched(rule: str, asked: list[tuple[Tensor, Proposal, Tensor]], device: torch.device) -> list[Any]:
    """Return how many proposals are accepted, the next token and what is relaxed, of each problem of a batch."""
    parsed, to_probs = parse_rule(rule), SamplingFn(SamplingParams())
    target = torch.stack([to_probs(logits.to(device), []) for logits, _, _ in asked])
    draft = torch.stack([proposal.probs for _, proposal, _ in asked if proposal.probs is not None]).to(device)
    ids = torch.tensor([proposal.token_ids for _, proposal, _ in asked], device=device)
    used = torch.full((len(asked),), ids.shape[1], device=device)
    numbers = torch.stack([each for _, _, each in asked]).to(device)
    found = _decide(parsed, target, draft, ids, used, numbers)
    return [*zip(*(part.tolist() for part in found), strict=True)]


def walked(
    request: Request, pair: Pair, asked: list[tuple[Tensor, Proposal, Tensor]], device: torch.device
) -> list[Any]:
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
            ways: dict[str, Callable[[torch.device], list[Any]]] = {
                "batched": lambda place, rule=rule, asked=asked: batched(rule, asked, place)
            }
            if judges_untempered(parse_rule(rule)):  # it is for temperature 0, where the walk has it
                ways = {}
            for way, settings in WAYS.items():
                try:
                    request = Request.from_dict({"rule": rule, **settings})
                except ValueError:  # such as block verification with a rule that depends on the drafted token
                    continue
                ways[way] = lambda place, request=request, asked=asked: walked(request, pair, asked, place)
            for way, decide in ways.items():
                same = [one == other for one, other in zip(decide(device), decide(torch.device("cpu")), strict=True)]
                row = {"dtype": str(dtype)[6:], "way": way, "rule": rule, "same": sum(same), "of": len(same)}
                rows.append(row)
    return rows


def greedy_answers(device: torch.device, count: int) -> dict[str, Any]:
    """Return how many of the bundled pair's greedy answers in float32 are the CPU's, token for token."""
    pairs = [load_pair(dtype=torch.float32, device=place, kept_prompts=0) for place in (device, "cpu")]
    texts = [problem.prompt for problem in islice(word_problems("test", seed=1), count)]
    answers = [[generate(pair, text, temperature=0, max_new_tokens=200).token_ids for text in texts] for pair in pairs]
    return {"same": sum(ours == theirs for ours, theirs in zip(*answers, strict=True)), "of": count}


def speed(pair: Pair, given: Namespace, until: float) -> dict[str, Any]:
    """Return the answers that there was time for, and their summary."""
    texts = [problem.prompt for problem in islice(word_problems("test", seed=1), given.prompts)]
    others = ["generate", *(f"assisted|{count}" for count in given.assisted)]
    contenders = [contender(pair, name) for name in cells(given.proposals, list(given.rules), others)]
    answers: Answers = {}
    for _ in measure(contenders, requests_of(texts, given.tokens), answers, until - time.perf_counter()):
        pass
    return {"answers": answers, "summary": summary(answers) if answers else None}


def main() -> None:
    """Check, measure, print, draw and write; the exit code is 1 where devices disagree."""
    began = time.perf_counter()
    made = parser(
        __doc__,
        device="cuda",
        minutes=(7.5, "begin nothing that would end later"),
        proposals=[1, 3, 5, 7, 11, 15],
        assisted=([3, 7], "proposals of assisted generation"),
        rules=["lossless", "Cactus 1", "clamped 2, digits protected"],
        prompts=12,
        tokens=200,
        small=(False, "small twins and rows, two prompts: to try the command"),
        output=(Path("gpu"), "a folder"),
    )
    given = made.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        made.error("this machine has no GPU that PyTorch can use: give --device cpu --small to try the command")
    pairs, dtype, vocabulary, count = [("1B", "0.1B"), ("8B", "0.5B")], torch.bfloat16, 151_936, 8
    if given.small:
        pairs, dtype, vocabulary, count = [("small", "tiny")], torch.float32, 1200, 3
        given.prompts, given.tokens, given.proposals, given.assisted = 2, 16, [1, 3], [3]
    torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {"decisions": decisions(device, load_pair(device="cpu"), vocabulary, count)}
    print(agreement(found["decisions"]), flush=True)
    found["greedy_answers"] = greedy_answers(device, 2 if given.small else 8)
    print("greedy answers in float32 that are the CPU's:", found["greedy_answers"], flush=True)
    found["speed"], end = {}, began + 60 * given.minutes
    given.output.mkdir(parents=True, exist_ok=True)
    for i, (target, draft) in enumerate(pairs):
        now = time.perf_counter()
        until = now + (end - now) / (len(pairs) - i)
        pair = twin_pair(SHAPES[target], SHAPES[draft], dtype=dtype, device=device)
        name = f"{target} with {draft}"
        found["speed"][name] = row = speed(pair, given, until)
        print(f"\n{name}, {str(dtype)[6:]}")
        print(as_table(row["summary"]) if row["summary"] else "there was no time for any prompt", flush=True)
        del pair
        write(given.output / "gpu.json", {"results": found}, asked(given))
    drawn = {name: row["summary"] for name, row in found["speed"].items() if row["summary"]}
    if drawn:
        write_atomically(given.output / "gpu.svg", picture(drawn))
    print(f"\n{time.perf_counter() - began:.0f} s; written to {given.output}/gpu.json and gpu.svg")
    raise SystemExit(0 if agree(found) else 1)


def agree(found: dict[str, Any]) -> bool:
    """Whether the devices agree as far as rounding allows."""
    shares: dict[tuple[str, str], list[int]] = {}
    for row in found["decisions"]:
        share = shares.setdefault((row["dtype"], row["way"]), [0, 0])
        share[0], share[1] = share[0] + row["same"], share[1] + row["of"]
    greedy = found["greedy_answers"]
    return all(same >= LEAST_AGREEMENT * of for same, of in shares.values()) and greedy["same"] == greedy["of"]


def agreement(rows: list[dict[str, Any]]) -> str:
    """Return the shares of equal decisions as lines of text."""
    lines = ["decisions that are the CPU's, of all rules:"]
    for dtype, way in dict.fromkeys((row["dtype"], row["way"]) for row in rows):
        own = [row for row in rows if (row["dtype"], row["way"]) == (dtype, way)]
        other = sorted({row["rule"] for row in own if row["same"] < row["of"]})
        said = f"; not all of {', '.join(other)}" if other else ""
        lines.append(f"  {dtype:9} {way:28} {sum(r['same'] for r in own)} of {sum(r['of'] for r in own)}{said}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
