"""What users set of a request, by flat names and part by part, known without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from cactus_decoding.core.knobs import Knob, Parameter, settings_of
from cactus_decoding.core.policy.budget import Budget
from cactus_decoding.core.policy.importance_limit import ImportanceLimit
from cactus_decoding.core.policy.phases import Phases
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.sampling.settings import SamplingSettings
from cactus_decoding.core.verification.declarations import VERIFICATIONS

MAX_SEED = 2**63 - 1
NUM_SPECULATIVE_TOKENS = 6
"""Proposals per step where a request says nothing: what suits the bundled pair, and what judges blocks of one size."""
AUTO = "auto"
"""The draft length of models that nothing is known of: `cactus_decoding.AutoLength`."""


@dataclass(frozen=True)
class RuleSettings:
    """The acceptance rule, as it is spelled."""

    rule: Annotated[str, Knob(
        "Acceptance rule, such as cactus:delta=0.5 ('cactus rules' lists all) or my_module:MyRule,ratio=0.5.",
        metavar="RULE")] = "lossless"  # fmt: skip


@dataclass(frozen=True)
class ProposalSettings:
    """What a step proposes and how that is verified, as it is spelled."""

    num_speculative_tokens: Annotated[str | None, Knob(
        "Tokens that the draft proposes per step; 'auto' for as many as pay on this machine, which may be none; "
        "'confidence:threshold=0.4' to stop where it is unsure; or 'adaptive' to learn from the times of steps.",
        metavar="N", shown=f"{NUM_SPECULATIVE_TOKENS} for the bundled pair, else {AUTO}")] = None  # fmt: skip
    tree: Annotated[str | None, Knob(
        "Propose a tree instead: 'static=4.2.2.1' for one in which 4 may follow the text, 2 each of them, and so on, "
        "'best_first,nodes=16' for one of the likeliest tokens, 'adaptive' for one as large as is worth its time.",
        metavar="SHAPE")] = None  # fmt: skip
    verification: Annotated[
        str, Knob("; ".join(f"'{each.name}': {each.summary}" for each in VERIFICATIONS.values()) + ".", metavar="HOW")
    ] = next(iter(VERIFICATIONS))


@dataclass(frozen=True)
class AnswerSettings:
    """Where a response ends, and its randomness."""

    max_new_tokens: Annotated[int, Knob("Upper limit of an answer's length.", "tokens", ge=1)] = 256
    stop: Annotated[tuple[str, ...], Knob("End before this text; may be given several times.", metavar="TEXT")] = ()
    seed: Annotated[
        int | None, Knob("The same seed gives the same text.", ge=0, le=MAX_SEED, metavar="S", shown="drawn")
    ] = None


PARTS: MappingProxyType[str, type[Any]] = MappingProxyType(
    {
        "judging": RuleSettings,
        "budget": Budget,
        "protection": Protection,
        "importance": ImportanceLimit,
        "phases": Phases,
        "proposals": ProposalSettings,
        "sampling": SamplingSettings,
        "answer": AnswerSettings,
    }
)
"""The dataclasses that declare the settings of a request, by what people call them."""
DECODING = ("judging", "protection", "importance", "phases", "proposals")
"""Those that calls of other libraries' own methods take besides, together with a budget; the rest is theirs."""
SETTINGS: MappingProxyType[str, Parameter] = MappingProxyType(
    {name: each for part in PARTS.values() for name, each in settings_of(part).items()}
)
"""Every setting by its flat name."""


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
    said = any(settings.get(name) is not None for name in settings_of(ProposalSettings) if name != "verification")
    if not automatic or said or (scheme is not None and (scheme.judges_steps or scheme.lossy)):
        return dict(settings)
    return {**settings, "num_speculative_tokens": AUTO}
