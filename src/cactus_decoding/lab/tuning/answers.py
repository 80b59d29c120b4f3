"""The target's answers to prompts, and what each draft and look-up would have proposed along them."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cactus_decoding.core.audit import acceptance
from cactus_decoding.core.drafting import measuring
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.generate import stream
from cactus_decoding.core.models.base import BaseCachedModel
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.types import AcceptanceRule

FEWEST_LOOKED_AT = 8  # the fewest tokens of an answer, however little time is left
_ROWS = 16  # how many rows are compared at once, in float64


@dataclass(frozen=True)
class TunedAnswer:
    """An answer of the target, and what is known of proposals for each of its tokens."""

    token_ids: list[int]
    copied: list[list[int]]  # what look-up finds after the text before each token
    chances: Mapping[tuple[str, str], Tensor]  # by draft and rule: that a proposal for each token is kept, [tokens]
    verify_seconds: float  # for each token


def record_answers(
    target: Pair,
    drafts: Mapping[str, ModelDrafter],
    prompt: str,
    request: Request,
    rules: Sequence[AcceptanceRule],
    *,
    seconds: float,
    copies: int,
) -> TunedAnswer:
    r"""Have the target answer, and read the answer with every draft in one pass each.

    A drafted token is kept with the chance :math:`\sum_x \min(p(x), h_x(x))`, so no draft needs to be drawn. A token
    that look-up copies is kept if it is what the target wrote: along the target's own answers that is as likely as that
    the lossless test accepts it.

    The target's drafter is look-up, which copies up to ``copies`` tokens. The answer ends ``seconds`` after its first
    token, but not before it has `FEWEST_LOOKED_AT` tokens.
    """
    response, rows, verifying = stream(target, prompt, request), list[Tensor](), list[float]()
    windows = [draft.max_length for draft in drafts.values() if draft.max_length is not None]
    start = len(response.prompt_token_ids)
    room = min(windows, default=start + request.max_new_tokens) - start
    until = math.inf
    for outcome in response:
        until = min(until, time.perf_counter() + seconds)
        rows.append(outcome.rows.logits[:1].float())
        verifying.append(outcome.verify_seconds)
        if len(rows) >= min(FEWEST_LOOKED_AT, room) and (time.perf_counter() > until or len(rows) >= room):
            break
    response.close()
    ids, text = response.token_ids, [*response.prompt_token_ids, *response.token_ids]
    logits = torch.cat(rows)
    chances = {
        (name, str(rule)): kept
        for name, draft in drafts.items()
        for rule, kept in zip(rules, _kept(draft, text, logits, request.sampling, rules), strict=True)
    }
    copied = [
        target.drafter.propose(text[: start + i], copies, lambda row, _: row, None).token_ids for i in range(len(ids))
    ]
    return TunedAnswer(ids, copied, chances, statistics.median(verifying))


def _kept(
    draft: ModelDrafter, text: list[int], logits: Tensor, sampling: SamplingParams, rules: Sequence[AcceptanceRule]
) -> list[Tensor]:
    """Return the chances that a draft's proposals for the last tokens of a text are kept, for each rule."""
    count = len(logits)
    try:
        theirs = draft.read(text[:-1], count).float().to(logits.device)
        found = [
            [_chances(rule, *blocks, sampling) for blocks in zip(logits.split(_ROWS), theirs.split(_ROWS), strict=True)]
            for rule in rules
        ]
    finally:
        draft.reset()
    return [torch.cat(blocks).cpu() for blocks in found]


def _chances(rule: AcceptanceRule, target: Tensor, draft: Tensor, sampling: SamplingParams) -> Tensor:
    judged = SamplingParams() if isinstance(rule, GreedyRule) else sampling
    rows = [part(logits).double() for part, logits in ((judged, target), (sampling, draft))]
    q, p = (row / row.sum(-1, keepdim=True) for row in rows)
    if isinstance(rule, Lossless):
        return torch.minimum(q, p).sum(-1)
    return acceptance(rule, q, p).clamp(0.0, 1.0)


TIMED_WIDTHS = (1, 4, 2, 8, 3, 12, 16, 6, 5, 7, 10, 9, 11, 14, 13, 15)
"""Tokens of the passes that are timed; first those that are cheap where kernels work on blocks of four rows."""
_SAME = 1.03  # more threads are used only if they are faster than fewer by this factor


def thread_counts() -> list[int]:
    """Return numbers of threads to try: 1 to 4, then about half as many more each time, up to all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = [1, 2, 3, *(each << power for power in range(12) for each in (4, 6))]
    return [*(count for count in sizes if count < cores), cores]


def chosen_threads(seconds: Mapping[int, float]) -> int:
    return min(count for count, taken in seconds.items() if taken <= _SAME * min(seconds.values()))


def use_fastest_threads(model: BaseCachedModel, counts: Sequence[int], widths: Sequence[int], until: float) -> int:
    """Try numbers of threads on passes of some widths, make the model use the best one, and return it.

    They are compared by wall time, the best of three each, because other programs on the machine affect all of them or
    none. Each is tried once, and no pass begins after ``until``, by `time.perf_counter`; a single number is not timed.
    """
    taken: dict[int, float] = {}
    for count in counts if len(counts) > 1 else ():
        model.use_threads(count)
        found = measuring.time_passes(model, widths, time.perf_counter, 3, until)
        taken[count] = sum(found.values()) if len(found) == len(widths) else found[widths[0]] * len(widths)
    chosen = chosen_threads(taken) if taken else counts[0]
    model.use_threads(chosen)
    return chosen
