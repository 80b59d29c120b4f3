"""Answers drawn from a model's own law, many at once, by transformers' `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import GenerationConfig, PreTrainedModel


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    stop_token_ids: Sequence[int],
    max_new_tokens: int,
    seed: int,
) -> list[list[int]]:
    """Return an answer to each prompt, at temperature 1 and without truncation, its end of text included.

    Prompts are token ids, at least one each. The seed is this batch's: torch's own random numbers are left as they
    were.
    """
    width, device = max(map(len, prompts)), model.device
    ids = torch.tensor([[0] * (width - len(each)) + list(each) for each in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts], device=device)
    devices = [device] if device.type == "cuda" else []
    asked = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_new_tokens,
        eos_token_id=list(stop_token_ids) or None,
        pad_token_id=0,
        use_cache=True,
    )
    with _plain(model, asked), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        written = model.generate(input_ids=ids, attention_mask=mask)[:, width:].tolist()
    return [_until(answer, stop_token_ids) for answer in written]


@contextmanager
def _plain(model: PreTrainedModel, asked: GenerationConfig) -> Iterator[None]:
    """Take a model's own sampling defaults away for a while: `generate` fills what is not given with them."""
    before, training = model.generation_config, model.training
    model.generation_config = asked
    model.eval()
    try:
        yield
    finally:
        model.generation_config = before
        model.train(training)


def _until(answer: list[int], stop_token_ids: Sequence[int]) -> list[int]:
    """Return an answer up to and with its first end of text; what follows is padding."""
    ends = [place for place, token in enumerate(answer) if token in stop_token_ids]
    return answer[: ends[0] + 1] if ends else answer
