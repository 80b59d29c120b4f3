"""Random models under a small constraint, with their rows by the definition of masking."""

from __future__ import annotations

import itertools

import torch

from cactus_decoding.core.constraints.base import ConstrainedSampling, Grammar
from cactus_decoding.core.sampling.params import SamplingFn, SamplingParams
from support.constraints import small_vocabulary
from support.tree_enumeration import Models

LETTERS, END, LENGTH = "abc", 3, 3
WORDS = ("aa", "ab", "ba", "bab", "c", "cca")
"""What the grammar allows, each followed by the end token."""
SAMPLING = SamplingParams(temperature=0.8, top_p=0.85)


def allowed_after(text: tuple[int, ...]) -> list[bool]:
    """Return the mask by its definition: the tokens with which a text begins an allowed one; all after such an end."""
    ended = [(*map(LETTERS.index, word), END) for word in WORDS]
    if text and not any(each[: len(text)] == text and each != text for each in ended):
        return [True] * 4
    return [any(each[: len(text) + 1] == (*text, token) for each in ended) for token in range(4)]


class Constrained(Models):
    """Random logits of a text, and the rows that sessions make of them; or wrong ones."""

    def __init__(self, seed: int = 0, variant: str = "right") -> None:
        super().__init__(4, seed)
        vocabulary = small_vocabulary([letter.encode() for letter in LETTERS])
        self.constraint = vocabulary.constraint(Grammar("regex", "|".join(WORDS), "it"))
        self._variant = variant

    def logits(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the target's and the draft's."""
        generator = torch.Generator().manual_seed(self._seed + sum((t + 1) * 5**i for i, t in enumerate(text)))
        rows = torch.randn(2, 4, generator=generator, dtype=torch.float64) * 1.5
        return rows[0], rows[1]

    def __call__(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        if text not in self._rows:
            plain = SamplingFn(SAMPLING)
            constrained = ConstrainedSampling(plain, self.constraint, 0)
            target, draft = (row[None] for row in self.logits(text))
            if self._variant == "draft only":
                target = plain(target, [*text])
            elif self._variant == "after top-p":
                late = plain(target, [*text]) * torch.tensor(allowed_after(text))
                target = late / late.sum() if late.sum() > 0 else constrained(target, [*text])
            else:
                target = constrained(target, [*text])
            self._rows[text] = target[0], constrained(draft, [*text])[0]
        return self._rows[text]

    def expected(self, text: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows by their definition: logits that are masked first, then temperature, then top-p."""
        mask = torch.tensor(allowed_after(text))
        rows = []
        for logits in self.logits(text):
            probs = (logits.masked_fill(~mask, -torch.inf) / SAMPLING.temperature).softmax(-1)
            order = probs.argsort(descending=True).tolist()
            before = [0.0, *itertools.accumulate(probs[i].item() for i in order)]
            kept = {i for i, mass in zip(order, before, strict=False) if mass < SAMPLING.top_p}
            probs = torch.tensor([p if i in kept else 0.0 for i, p in enumerate(probs.tolist())], dtype=torch.float64)
            rows.append(probs / probs.sum())
        return rows[0], rows[1]
