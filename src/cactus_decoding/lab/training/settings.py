"""The settings of a draft's training, checked once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.extras import needing
from cactus_decoding.lab.training.losses import LOSSES, parse_loss

ProgressReport = Callable[[str, int, int, str], None]
"""Called with the stage, how much of it is done, how much there is to do, and a remark."""


def check_installed() -> None:
    with needing("training a draft needs accelerate", "train"):
        import accelerate  # noqa: F401


@dataclass(frozen=True)
class TrainingSettings:
    """How a draft is trained, and from what.

    A ``draft``, ``layers`` with ``width``, or ``first_layers`` says where it starts; ``first_layers`` of a draft, if
    there is one. Raises `TypeError`, `ValueError` for settings that are out of range or exclude one another.

    Example:
        >>> TrainingSettings("bundled", "prompts.jsonl", draft="bundled:worded").loss
        'lk'
    """

    target: Annotated[str, Setting("Verifying model: a local path, a hub name, or ``bundled``.")]
    data: Annotated[str, Setting("JSON Lines of prompts, prompts with completions, or texts; or a task.")]
    loss: Annotated[
        str,
        Setting(f"One of {', '.join(LOSSES)}.", metavar="LOSS"),
    ] = "lk"
    draft: Annotated[
        str | None,
        Setting(
            "A draft with the target's tokenizer: a local path, a hub name, or bundled:worded.",
            metavar="MODEL",
            shown="",
        ),
    ] = None
    layers: Annotated[
        int | None,
        Setting("A new draft of N layers with the target's architecture and tokenizer, and --width.", ge=1, shown=""),
    ] = None
    width: Annotated[int | None, Setting("Of the new draft's hidden states.", ge=1, shown="")] = None
    first_layers: Annotated[
        int | None, Setting("The first N layers of the target or, where one is given, the draft.", ge=1, shown="")
    ] = None
    draft_vocabulary: Annotated[
        int | None, Setting("Propose from the N commonest tokens of the training text alone.", ge=1, shown="the whole")
    ] = None
    on_policy: Annotated[
        float,
        Setting(
            "Share of the sequences that the draft itself continues, and the target's rows judge.",
            ge=0,
            le=1,
            metavar="SHARE",
        ),
    ] = 0.0
    refresh_every: Annotated[int, Setting("Steps after which the draft continues anew.", ge=1)] = 50
    problems: Annotated[int | None, Setting("Take the first N.", ge=1, shown="all; 500 word problems")] = None
    max_new_tokens: Annotated[int, Setting("Of an answer that the target or the draft gives.", ge=1)] = 256
    max_length: Annotated[int, Setting("Tokens of a sequence; longer ones are cut.", ge=2)] = 1024
    held_out: Annotated[
        int,
        Setting(
            "Documents that choose the best checkpoint, and as many that measure the result; at most "
            "a tenth of all each.",
            ge=1,
        ),
    ] = 64
    steps: Annotated[int, Setting("Of the optimiser.", ge=1)] = 1000
    batch_size: Annotated[int, Setting("Sequences a step, of each process.", ge=1, flat="batch")] = 16
    gradient_accumulation: Annotated[int, Setting("Batches a step.", ge=1)] = 1
    learning_rate: Annotated[
        float,
        Setting(
            "Of AdamW: reached after 5 % of the steps, then along a cosine to zero.", gt=0, lt=math.inf, metavar="RATE"
        ),
    ] = 2e-4
    evaluate_every: Annotated[int, Setting("Steps between evaluations and checkpoints.", ge=1)] = 100
    num_speculative_tokens: Annotated[
        int, Setting("Proposals per step, of the acceptance length that chooses the best checkpoint.", ge=1)
    ] = 6
    bfloat16: Annotated[bool, Setting("Forward passes in bfloat16; weights in float32.")] = False
    cache: Annotated[
        str | None,
        Setting(
            "Keep the target's rows here: the 64 likeliest tokens of each and the mass of the rest, "
            "which makes divergences a little too small.",
            metavar="DIR",
        ),
    ] = None
    seed: Annotated[int, Setting("Of everything random.", ge=0, metavar="S")] = 0
    chat: Annotated[bool, Setting("Prompts are a user's messages, which the target's chat template writes.")] = False
    system: Annotated[str | None, Setting("System message of a chat.")] = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "loss", str(parse_loss(self.loss)))
        if (self.layers is None) != (self.width is None):
            raise ValueError("layers and width go together: give both for a new draft")
        given = self.draft is not None or self.first_layers is not None
        if given == (self.layers is not None):
            raise ValueError(
                "give one start: a draft or its first_layers, layers and width for a new one, or first_layers of the "
                f"target; {'several' if given else 'none'} of them are given"
            )
        if self.on_policy and self.loss == "cross_entropy":
            raise ValueError(
                "cross_entropy learns the texts' own tokens, which are the draft's with on_policy: give another loss"
            )
        if self.on_policy and self.cache is not None:
            raise ValueError("a cache keeps rows of texts that stay, but on_policy writes new ones: give one of them")
        if self.on_policy and self.evaluate_every % self.refresh_every:
            raise ValueError(
                f"evaluate_every must be a multiple of refresh_every, so that a run can be resumed, but they are "
                f"{self.evaluate_every} and {self.refresh_every}"
            )

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return values if self.chat else {name: values[name] for name in values if name not in ("chat", "system")}
