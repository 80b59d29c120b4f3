"""What a request proposes per step where it does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cactus_decoding.core.verification.declarations import VERIFICATIONS

MAX_SEED = 2**63 - 1
NUM_SPECULATIVE_TOKENS = 6
"""Proposals per step where a request says nothing: what suits the bundled pair, and what judges blocks of one size."""
AUTO = "auto"
"""The draft length of models that nothing is known of: `cactus_decoding.AutoLength`."""


def with_default_proposals(settings: Mapping[str, Any], *, automatic: bool) -> dict[str, Any]:
    """Return settings that say what a step proposes: where they do not, what pays on this machine.

    Relaxed rules have a fixed number where steps are judged as a whole: there the proposals at a position must have the
    same law in every step.

    What pays can be chosen (``automatic``) for other pairs than the bundled one, which has a number that suits it, and
    for drafters that need not be asked in every step.

    Example:
        >>> with_default_proposals({"rule": "lossless"}, automatic=True)
        {'rule': 'lossless', 'num_speculative_tokens': 'auto'}
        >>> with_default_proposals({"num_speculative_tokens": 4}, automatic=True)
        {'num_speculative_tokens': 4}
    """
    scheme = VERIFICATIONS.get(str(settings.get("verification")).partition(":")[0])
    said = any(settings.get(name) is not None for name in ("num_speculative_tokens", "tree"))
    if not automatic or said or (scheme is not None and (scheme.judges_steps or scheme.lossy)):
        return dict(settings)
    return {**settings, "num_speculative_tokens": AUTO}
