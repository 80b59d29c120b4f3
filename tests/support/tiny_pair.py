"""A pair of tiny random models in float64 that share the bundled tokenizer, and their rows by plain forward passes."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import AutoTokenizer

from cactus_decoding import ModelDrafter, NgramDrafter, Pair, SamplingParams, zoo
from cactus_decoding.engines.transformers.cached_model import CachedModel
from support.tiny_models import tiny_llama


def tiny_pair(draft: str = "model", *, sharpness: float = 2.0) -> Pair:
    """Return a pair whose rows differ, and whose tokens are parts of characters, words and special tokens alike."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    target, drafting = (
        tiny_llama(seed, len(tokenizer), positions=256, sharpness=sharpness * (1 - 0.2 * seed)) for seed in (0, 1)
    )
    with torch.no_grad():  # alike enough that proposals are kept now and then
        for mine, other in zip(drafting.parameters(), target.parameters(), strict=True):
            mine.copy_(0.8 * other + 0.2 * mine)
    drafter = NgramDrafter() if draft == "ngram" else ModelDrafter(drafting)
    return Pair(CachedModel(target), drafter, tokenizer)


@torch.inference_mode()
def rows_after(pair: Pair, token_ids: list[int], sampling: SamplingParams) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return target's and draft's row after some tokens, and the target's before temperature, ``[vocabulary]``."""
    logits = pair.target.model(torch.tensor([token_ids])).logits[0, -1]
    draft = None
    if isinstance(pair.drafter, ModelDrafter) and sampling.temperature > 0:  # greedy drafts have no rows
        draft = sampling(pair.drafter.model(torch.tensor([token_ids])).logits[0, -1])
    return sampling(logits), draft, logits.softmax(-1)
