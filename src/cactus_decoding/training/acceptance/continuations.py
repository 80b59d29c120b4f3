"""The draft's own continuations of prompts, which the target's rows judge."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from cactus_decoding.training.acceptance.answers import BATCH
from cactus_decoding.training.acceptance.data import TokenSequence, collate
from cactus_decoding.training.acceptance.sampling import sample


class Continuations:
    """A stock of sequences that the draft has written, renewed every so many steps, to mix into batches.

    What is drawn depends on the seed, the process and the step only, so that a run which is resumed where the stock is
    renewed goes on as if nothing had happened.

    Args:
        sequences: whose prompts are continued; of one without a prompt, its first half.
        share: of the sequences of a batch, on average, that the draft writes.
        refresh_every: steps between renewals.
        per_step: sequences of this process in a step.
        stop_token_ids: which end a continuation.
        max_new_tokens: its greatest length.
        max_length: of a whole sequence; it is more than that of any prompt.
        seed: of this process.
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
        """Return a batch in which some sequences are the draft's own."""
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
