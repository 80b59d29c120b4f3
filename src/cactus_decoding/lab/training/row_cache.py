"""A cache of the target's probabilities along fixed texts, kept coarsely in files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from cactus_decoding.core.files.writing import replacing
from cactus_decoding.engines.transformers.cached_model import vocabulary_size
from cactus_decoding.lab.training.data import IGNORED, TokenSequence, collate
from cactus_decoding.lab.training.losses import Rows, chosen, log_rows
from cactus_decoding.lab.training.saving import naming

TOP = 64  # so many of the likeliest tokens are kept at a position
PER_SHARD = 256
_BATCH = 8


class RowCache:
    """Keeps the `TOP` likeliest tokens of the target at each position, and the mass of all others.

    Losses then see the others as one outcome, of the target and the draft (`coarse`). This is biased: distributions
    that differ only among the others look alike. Divergences come out too small, never too large (up to float32's
    rounding). The acceptance of lossless verification comes out too large, by at most the smaller of both models'
    masses on the others. For the bundled pair and a TOP of 64, the target's mass on the others is 3e-5 on average, and
    the acceptance of 0.920 comes out 2e-5 too large; distributions over large vocabularies at temperature 1 have
    heavier tails. Evaluations use full probabilities.

    Each target and set of texts has a folder of its own in ``folder``.
    """

    def __init__(
        self, folder: Path, target: PreTrainedModel, sequences: Sequence[TokenSequence], top: int = TOP
    ) -> None:
        self._target, self._sequences, self._top = target, sequences, top
        self.vocabulary = vocabulary_size(target)
        self.folder = folder / key_of(target, sequences, top)

    def fill(self, report: Callable[[int], None] = lambda done: None) -> None:
        with naming(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(self._sequences), PER_SHARD):
            some, shard = self._sequences[start : start + PER_SHARD], self._shard(start // PER_SHARD)
            if not shard.exists():
                with naming(shard), replacing(shard) as part:
                    save_file(self._computed(some, lambda done, start=start: report(start + done)), part)  # type: ignore[misc]
            report(start + len(some))

    def _shard(self, number: int) -> Path:
        return self.folder / f"rows-{number:05}.safetensors"

    @torch.no_grad()
    def _computed(self, sequences: Sequence[TokenSequence], report: Callable[[int], None]) -> dict[str, Tensor]:
        ids, log_probs = [], []
        for start in range(0, len(sequences), _BATCH):
            report(start)
            batch = collate(sequences[start : start + _BATCH])
            inputs = {name: batch[name].to(self._target.device) for name in ("input_ids", "attention_mask")}
            logits = self._target(**inputs, use_cache=False).logits[:, :-1]
            top = likeliest(logits[(batch["labels"][:, 1:] != IGNORED).to(logits.device)], self._top)
            ids.append(top[0].to(torch.int32))
            log_probs.append(top[1])
        return {"ids": torch.cat(ids), "log_probs": torch.cat(log_probs)}

    def rows(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return tokens and logarithms of q at the learned positions of some sequences, as `likeliest` does."""
        found = [self._rows(index) for index in indices]
        ids, log_probs = (torch.cat(part) for part in zip(*found, strict=True))
        return ids.long(), log_probs

    def _rows(self, index: int) -> tuple[Tensor, Tensor]:
        number = index // PER_SHARD
        before = self._sequences[number * PER_SHARD : index]
        start = sum(each.learned for each in before)
        end = start + self._sequences[index].learned
        with safe_open(self._shard(number), "pt") as shard:
            return shard.get_slice("ids")[start:end], shard.get_slice("log_probs")[start:end]


def likeliest(logits: Tensor, top: int = TOP) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens, ``[rows, top]``, and their log-probabilities and the others', ``[rows, top + 1]``.

    The others' mass is summed up by itself, because 1 minus that of the likeliest is mostly rounding. Both are on the
    CPU.
    """
    rows = log_rows(logits)
    found = rows.topk(min(top, rows.shape[-1]))
    return found.indices.cpu(), torch.cat([found.values, _others(rows, found.indices)], -1).cpu()


def _others(log_probs: Tensor, ids: Tensor) -> Tensor:
    """Return the logarithm of the mass of all tokens but some, ``[rows, 1]``; tiny where there are no others."""
    least = torch.finfo(log_probs.dtype).min / 4
    return log_probs.scatter(-1, ids, least).logsumexp(-1, keepdim=True).clamp(min=_floor(log_probs))


def _floor(log_probs: Tensor) -> float:
    return math.log(torch.finfo(log_probs.dtype).tiny)


def coarse(
    top_ids: Tensor, top_log_probs: Tensor, vocabulary: int, draft_logits: Tensor, token_ids: Tensor, mask: Tensor
) -> Rows:
    """Return rows of one outcome for each of the target's likeliest tokens, and one for all others.

    Where models pad their vocabularies differently, tokens that only one of them has are left out; if the target has
    more, the mass of those that were not kept counts as others'.

    ``top_ids`` are ``[positions, top]``; ``top_log_probs`` also have the mass of all others, ``[positions, top + 1]``;
    ``vocabulary`` is the target's size; ``draft_logits`` are ``[texts, length, vocabulary]``, and ``mask`` marks the
    counted positions of the texts.
    """
    draft, target = log_rows(draft_logits[..., :vocabulary][mask]), top_log_probs
    lacking = functional.pad(top_ids >= draft.shape[-1], (0, 1))
    if lacking.any():
        impossible = torch.finfo(draft.dtype).min / 4
        draft = functional.pad(draft, (0, int(top_ids.max()) + 1 - draft.shape[-1]), value=impossible)
        target = log_rows(target.masked_fill(lacking, impossible))
    outcomes = torch.cat([draft.gather(-1, top_ids), _others(draft, top_ids)], -1)
    floor = _floor(draft)  # what neither row has must not weigh: tiny times a hugely negative logarithm is no zero
    return Rows(target.clamp(min=floor), outcomes.clamp(min=floor), chosen(draft, token_ids[mask]), mask)


def key_of(target: PreTrainedModel, sequences: Sequence[TokenSequence], top: int) -> str:
    """Return a folder name that depends on the beginnings of the target's weights and on every token."""
    digest = hashlib.sha256(f"{top} and others, {type(target).__name__}".encode())
    for name, parameter in target.named_parameters():
        digest.update(f"{name} {list(parameter.shape)} {parameter.flatten()[:8].tolist()}".encode())
    for each in sequences:
        digest.update(repr(each).encode())
    return digest.hexdigest()[:16]
