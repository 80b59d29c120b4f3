"""What a request proposes per step if it does not say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cactus_decoding.core.verification.declarations import VERIFICATIONS

MAX_SEED = 2**63 - 1
NUM_SPECULATIVE_TOKENS = 6
"""Proposals per step if a request says nothing: good for the bundled pair, and for schemes that judge equal blocks."""
AUTO = "auto"
"""The default draft length for other models: `cactus_decoding.AutoLength`."""


def with_default_proposals(settings: Mapping[str, Any], *, automatic: bool) -> dict[str, Any]:
    """Return settings that say what a step proposes: if they do not, what is fastest on this machine.

    Relaxed rules keep a fixed number where steps are judged as a whole, because the proposals at a position must have
    the same distribution in every step there. ``automatic`` is false for the bundled pair, which has a number that
    suits it, and for drafters that have to be asked in every step.
    """
    scheme = VERIFICATIONS.get(str(settings.get("verification")).partition(":")[0])
    said = any(settings.get(name) is not None for name in ("num_speculative_tokens", "tree"))
    if not automatic or said or (scheme is not None and (scheme.judges_steps or scheme.lossy)):
        return dict(settings)
    return {**settings, "num_speculative_tokens": AUTO}
