"""Answers sampled from a model, many at once: the target's, kept in a file, and the draft's own."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cactus_decoding.core.files.jsonl import objects_in, whole_lines
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.lab.training.data import TokenSequence, collate
from cactus_decoding.lab.training.saving import naming

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel


def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    stop_token_ids: Sequence[int],
    max_new_tokens: int,
    seed: int,
) -> list[list[int]]:
    """Return an answer to each prompt, at temperature 1 and without truncation, including its end of text.

    Prompts are token ids, at least one each. The seed is for this batch only: torch's own random state does not change.
    """
    from transformers import GenerationConfig

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
    with torch.no_grad(), _plain(model, asked), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        written = model.generate(input_ids=ids, attention_mask=mask)[:, width:].tolist()
    return [_until(answer, stop_token_ids) for answer in written]


@contextmanager
def _plain(model: PreTrainedModel, asked: GenerationConfig) -> Iterator[None]:
    """Replace a model's own sampling defaults for a while: `generate` fills in what is not given from them."""
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


BATCH = 64


def answer(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    file: Path,
    *,
    stop_token_ids: Sequence[int],
    max_new_tokens: int,
    longest: int | None = None,
    seed: int,
    report: Callable[[int], None] = lambda done: None,
    batch: int = BATCH,
) -> None:
    """Write the target's answer to each prompt; those that an earlier call left in the file are kept.

    Each batch has a seed of its own, so that an interruption changes nothing. Prompts are token ids, of one data set
    and in its order. The file has JSON Lines of objects with ``token_ids``; a line that a kill cut off is written
    again. ``longest`` limits tokens of prompt and answer together.
    """
    kept = read_answers(file)
    if len(kept) < len(prompts):
        kept = kept[: len(kept) // batch * batch]  # whole batches, whose random numbers are their own
        with naming(file):
            write_atomically(file, "".join(map(_line, kept)))
    for start in range(len(kept), len(prompts), batch):
        some = prompts[start : start + batch]
        room = max_new_tokens if longest is None else min(max_new_tokens, longest - max(map(len, some)))
        found = sample(target, some, stop_token_ids=stop_token_ids, max_new_tokens=room, seed=seed * 1_000_003 + start)
        with naming(file), file.open("a", encoding="utf-8") as out:
            out.write("".join(map(_line, found)))
        report(start + len(found))


def read_answers(file: Path) -> list[list[int]]:
    data = whole_lines(file.read_bytes()) if file.exists() else b""
    return [value["token_ids"] for _, _, value in objects_in(data, file)]


def _line(token_ids: list[int]) -> str:
    return json.dumps({"token_ids": token_ids}) + "\n"


class Continuations:
    """A stock of sequences that the draft has written, renewed every so many steps, to mix into batches.

    What is sampled depends only on the seed, the process and the step, so that a run which is resumed where the stock
    is renewed goes on as if it had never stopped.

    The draft continues the prompts of ``sequences``, or the first half of one without a prompt. On average ``share`` of
    the sequences of a batch are the draft's. A process takes ``per_step`` sequences in a step, and ``max_length`` is
    more than the length of any prompt.
    """

    def __init__(
        self,
        sequences: Sequence[TokenSequence],
        share: float,
        refresh_every: int,
        per_step: int,
        *,
        stop_token_ids: Sequence[int],
        max_new_tokens: int,
        max_length: int,
        seed: int,
    ) -> None:
        prompts = [each.token_ids[: each.prompt_length or -(-len(each.token_ids) // 2)] for each in sequences]
        self._prompts = prompts
        self._share, self._every, self._size = share, refresh_every, math.ceil(share * per_step * refresh_every)
        self._stop, self._new, self._longest, self._seed = stop_token_ids, max_new_tokens, max_length, seed
        self._stock: list[TokenSequence] = []
        self._step, self._batch = -1, 0

    def mixed(self, batch: dict[str, Tensor], draft: PreTrainedModel, step: int) -> dict[str, Tensor]:
        if step != self._step:
            self._step, self._batch = step, 0
            if step % self._every == 0 or not self._stock:
                self._stock = self._written(draft, step)
        self._batch += 1
        rng = random.Random(f"{self._seed} {step} {self._batch}")
        rows = zip(batch["input_ids"].tolist(), batch["attention_mask"], batch["labels"], strict=True)
        mixed = []
        for ids, mask, labels in rows:
            length = int(mask.sum())
            given = TokenSequence(ids[:length], int((labels[:length] < 0).sum()))
            mixed.append(rng.choice(self._stock) if rng.random() < self._share else given)
        return {name: values.to(batch["input_ids"].device) for name, values in collate(mixed).items()}

    def _written(self, draft: PreTrainedModel, step: int) -> list[TokenSequence]:
        rng = random.Random(f"{self._seed} {step}")
        prompts = sorted((rng.choice(self._prompts) for _ in range(self._size)), key=len)  # little is padded
        stock = []
        for start in range(0, len(prompts), BATCH):
            some = prompts[start : start + BATCH]
            written = sample(
                draft,
                some,
                stop_token_ids=self._stop,
                max_new_tokens=min(self._new, self._longest - len(some[-1])),
                seed=rng.randrange(2**31),
            )
            stock += [
                TokenSequence([*prompt, *answer], len(prompt)) for prompt, answer in zip(some, written, strict=True)
            ]
        return [each for each in stock if each.learned > 0]
