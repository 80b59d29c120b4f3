"""Importances for tests: random weights for tokens that say something, and files of them."""

from __future__ import annotations

from pathlib import Path

import torch

from cactus_decoding.core.policy.importance import Importance
from cactus_decoding.core.policy.vocabulary import Vocabulary


def random_importance(words: Vocabulary, seed: int = 0, spread: float = 3.0, intercept: float = 0.0) -> Importance:
    """Return an importance with independent weights, of which the draft's count as much as the target's."""
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, len(words.texts), generator=generator) * spread
    about = {"target": "a test's", "draft": "another", "task": "none", "positions": 3}
    return Importance(a, b, intercept, words.fingerprint, about)


def digits_file(folder: Path, words: Vocabulary) -> str:
    """Write an importance that is near 1 where the target may write a digit, and near 0 elsewhere; return its path."""
    a = torch.tensor([60.0 if any(c.isdigit() for c in text) else 0.0 for text in words.texts])
    path = folder / "importance.safetensors"
    fit = {"positions": 9, "problems": 8, "worse": 0.1, "better": 0.02, "auc": [0.8, 0.7, 0.9]}
    about = {"target": "a test's", "fit": fit}
    Importance(a, torch.zeros_like(a), -3.0, words.fingerprint, about).save(path)
    return str(path)
