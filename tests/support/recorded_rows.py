"""Recorded steps made by hand, and a second way to what follows from them: enumeration, one position at a time."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.lab.frontier.frontier import as_result, frontier
from cactus_decoding.lab.frontier.recorded_rows import PackedRows, RecordedRows, pack_rows, step_of_proposals
from cactus_decoding.lab.frontier.rejections import rejections
from cactus_decoding.lab.frontier.relaxations import FAMILIES
from support.exact_enumeration import enumerate_tokens, fates, make_rows


def hand_made(
    target: Tensor, draft: Tensor, *, counts: list[int], problem: list[int], ends: list[bool], seed: int = 0
) -> RecordedRows:
    """Return steps of ``counts`` proposals each, drawn from the draft; the first ones of every step were visited."""
    generator = torch.Generator().manual_seed(seed)
    total = sum(counts)
    target, draft = target[:total], draft[:total]
    visited = []
    for count in counts:
        accepted = int(torch.randint(count + 1, (), generator=generator))
        visited += [place <= accepted for place in range(count)]
    return RecordedRows(
        pack_rows([target], target.shape[-1]),
        pack_rows([draft], draft.shape[-1]),
        torch.multinomial(draft, 1, generator=generator).squeeze(1).int(),
        torch.tensor(visited),
        step_of_proposals(torch.tensor(counts)),
        torch.tensor(problem),
        torch.tensor(ends),
        {"num_speculative_tokens": max(counts)},
        {},
    )


def some_rows(vocabulary: int = 7, seed: int = 0) -> RecordedRows:
    """Return six steps of three problems, one of them without a proposal, some ending the response."""
    counts = [3, 4, 0, 4, 2, 4]
    target, draft = make_rows(vocabulary, sum(counts), seed=seed)
    return hand_made(
        target, draft, counts=counts, problem=[0, 0, 1, 1, 2, 2], ends=[False, True, False, False, True, False]
    )


def agreeable_rows() -> RecordedRows:
    """Return 48 steps of 12 problems, four proposals each, from a draft that agrees with the target by and large."""
    counts = [4] * 48
    target, draft = make_rows(7, sum(counts), seed=3)
    problem = [step // 4 for step in range(48)]
    return hand_made(0.3 * target + 0.7 * draft, draft, counts=counts, problem=problem, ends=[False] * 48)


def one_sparse_step(seed: int = 0) -> RecordedRows:
    """Return steps over a vocabulary of which each row uses a few tokens, as top-k leaves them."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(2):
        logits = torch.randn(9, 40, generator=generator, dtype=torch.float64) * 3
        rows.append(logits.masked_fill(logits < logits.topk(4).values[..., -1:], -torch.inf).softmax(-1))
    return hand_made(rows[0], rows[1], counts=[4, 5], problem=[0, 1], ends=[False, False])


def frontier_file(path: Path) -> Path:
    """Write what `cactus frontier` finds of some rows, by every family."""
    rows = some_rows()
    found = as_result(frontier(rows, list(FAMILIES.values()), points=3), rows, {"commit": "0" * 40})
    found["rejections"] = rejections(rows, Vocabulary(("1", " a", " b", "+", "\n", "=", "")))
    path.write_text(json.dumps(found))
    return path


def float64_rows(packed: PackedRows) -> Tensor:
    rows = packed.dense(0, len(packed)).double()
    return rows / rows.sum(-1, keepdim=True)


def enumerated(rule, rows: RecordedRows) -> dict[str, float]:
    """Return means over visited positions, and the largest log-ratio, by enumeration of every drafted token."""
    target, draft = (float64_rows(packed)[rows.visited] for packed in (rows.target, rows.draft))
    output, accepted = enumerate_tokens(rule, target, draft)
    log_ratio = torch.where(output > 0, output.log() - target.log(), 0.0)
    return {
        "acceptance": accepted.sum(-1).mean().item(),
        "kl": (output * log_ratio).sum(-1).mean().item(),
        "tv": ((output - target).abs().sum(-1) / 2).mean().item(),
        "max_log_ratio": torch.where(output > 0, log_ratio, -torch.inf).max().item(),
    }


def enumerated_tokens(rule, rows: RecordedRows, max_proposals: int) -> list[float]:
    """Return the mean of a step's expected tokens for 1, 2, … proposals, by following every outcome of every step."""
    kept_of, _ = fates(rule, float64_rows(rows.target), float64_rows(rows.draft))
    steps = len(rows.problem)
    means = []
    for length in range(1, max_proposals + 1):
        total = 0.0
        for step in range(steps):
            places = [i for i in range(len(rows.drafted)) if int(rows.step[i]) == step]
            used = places[:length]
            reached = 1.0
            for count, place in enumerate(used):
                kept = kept_of[place, int(rows.drafted[place])].item()
                total += reached * (1 - kept) * (count + 1)  # the accepted ones before it, and the recovered token
                reached *= kept
            over = bool(rows.ends[step]) and len(used) == len(places) and places
            total += reached * (len(used) + (0 if over else 1))
        means.append(total / steps)
    return means
