"""Settings that suit the bundled pair without truncation, as flat names of a request: the demo's and the playground's.

`studies/relaxing/run.py` chooses them on validation problems: the width and the draft lengths by tokens per step and
time per answer, among those whose score is not below lossless. No held-out problem has a say.
"""

from __future__ import annotations

from typing import Any

LOSSLESS: dict[str, Any] = {"rule": "lossless", "num_speculative_tokens": 8}
"""Lossless speculation at its best draft length."""
RELAXED: dict[str, Any] = {"rule": "clamped:width=2.0", "protect": "digits", "num_speculative_tokens": 10}
"""The relaxed rule that pays where no answer depends on it, at its best draft length."""
WEAK_DRAFT = "bundled:draft"
"""A draft that cannot calculate: with it, the same rule breaks answers wherever it is not kept away from digits."""
