"""Settings for the bundled pair without truncation, as flat names of a request, for the demo and the playground.

`studies/relaxing/run.py` chooses them on validation problems, never on held-out ones: the width and the draft lengths
with the best tokens per step and time per answer among those whose score is not below lossless.
"""

from __future__ import annotations

from typing import Any

# at its best draft length
LOSSLESS: dict[str, Any] = {"rule": "lossless", "num_speculative_tokens": 8}
# faster where no answer depends on it, at its best draft length
RELAXED: dict[str, Any] = {"rule": "clamped:width=2.0", "protect": "digits", "num_speculative_tokens": 10}
# this draft cannot calculate: with it, the same rule breaks answers unless digits are protected
WEAK_DRAFT = "bundled:draft"
