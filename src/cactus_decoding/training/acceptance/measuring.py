"""How much of a draft several rules accept along texts, with intervals over the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from cactus_decoding.auditing import audit_rows
from cactus_decoding.divergences.rows import normalised
from cactus_decoding.evaluation.intervals import Interval, Numbers, bootstrapped, resampled_sums
from cactus_decoding.rules import as_rule
from cactus_decoding.training.acceptance.data import IGNORED, TokenSequence, collate
from cactus_decoding.training.acceptance.losses.base import Rows
from cactus_decoding.training.steps import steps_of_texts

_ROWS = 256
"""Audited at once."""


class Acceptance(NamedTuple):
    """What a rule accepts of a draft.

    Attributes:
        rate: the mean acceptance of a position.
        length: the texts' tokens over the steps that they are expected to take (see `steps_taken`).
    """

    rate: Interval
    length: Interval


@torch.no_grad()
def measure(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    sequences: Sequence[TokenSequence],
    rules: Sequence[str],
    num_speculative_tokens: int,
    report: Callable[[int], None] = lambda done: None,
) -> dict[str, Acceptance]:
    """Return what rules accept at the learned positions of some sequences, exactly for each row, at temperature 1.

    The models are on the same device; intervals are over sequences.
    """
    draft.eval()
    sums: list[list[tuple[float, float, int]]] = []
    for done, sequence in enumerate(sequences, start=1):
        batch = {name: values.to(target.device) for name, values in collate([sequence]).items()}
        labels = batch.pop("labels")[:, 1:]
        logits, theirs = (model(**batch, use_cache=False).logits[:, :-1] for model in (draft, target))
        rows = Rows.of(theirs, logits, labels.clamp(min=0), labels != IGNORED)
        q, p = (normalised(probs.double()) for probs in (rows.target_probs, rows.draft_probs))
        found = []
        for rule in map(as_rule, rules):
            parts = zip(q.split(_ROWS), p.split(_ROWS), strict=True)
            accepted = torch.cat([audit_rows(rule, *part).acceptance for part in parts])
            steps = steps_of_texts(accepted, rows.mask, num_speculative_tokens)
            found.append((accepted.sum().item(), steps.sum().item(), len(accepted)))
        sums.append(found)
        report(done)
    columns = np.array(sums, dtype=np.float64)
    return {rule: _with_intervals(columns[:, place]) for place, rule in enumerate(rules)}


def _with_intervals(columns: Numbers) -> Acceptance:
    """Return the rate and the length, of sums over each sequence's positions, ``[sequences, 3]``."""
    accepted, steps, positions = columns.sum(0)
    resampled = resampled_sums(columns)
    rates, lengths = resampled[:, 0] / resampled[:, 2], resampled[:, 2] / resampled[:, 1]
    return Acceptance(
        bootstrapped(accepted / positions, rates, len(columns)),
        bootstrapped(positions / steps, lengths, len(columns)),
    )
