"""The settings of a draft's training, checked once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from cactus_decoding.core.declared import Setting, check_fields
from cactus_decoding.core.extras import needing
from cactus_decoding.core.spelling import parse, spell
from cactus_decoding.lab.training.acceptance.losses import LOSSES, parse_loss

if TYPE_CHECKING:
    from torch import Tensor

    from cactus_decoding.lab.training.acceptance.losses import Rows

ProgressReport = Callable[[str, int, int, str], None]
"""Called with the stage, how much of it is done, how much there is to do, and a remark."""


@dataclass(frozen=True)
class AdaSpec:
    """Learns only from tokens that a draft of its size can learn: where a reference draft is much nearer the target.

    The reference is distilled first, by the loss ``kl``, from the same start for as many steps. Then the tokens with
    the largest KL(q || p) - KL(q || p_ref) of each batch (of each process) count.

    Source: AdaSPEC, arXiv 2510.19779.
    """

    keep: Annotated[float, Field(gt=0, le=1, description="share of a batch's tokens")] = 0.4

    def __post_init__(self) -> None:
        check_fields(self)

    def chosen(self, draft: Rows, reference: Rows) -> Tensor:
        gain = draft.kl.detach() - reference.kl
        return gain.topk(math.ceil(self.keep * len(gain))).indices

    def __str__(self) -> str:
        return spell("adaspec", self)


FILTERS = MappingProxyType({"adaspec": AdaSpec})


def parse_filter(text: str) -> AdaSpec:
    return parse("filter", text, FILTERS)


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

    target: Annotated[str, Field(description="Verifying model: a local path, a hub name, or ``bundled``.")]
    data: Annotated[str, Field(description="JSON Lines of prompts, prompts with completions, or texts; or a task.")]
    loss: Annotated[
        str,
        Field(description=f"One of {', '.join(LOSSES)}, which names a rule after it, as in relaxed:clamped:width=3."),
        Setting(metavar="LOSS"),
    ] = "lk"
    draft: Annotated[
        str | None,
        Field(description="A draft with the target's tokenizer: a local path, a hub name, or bundled:worded."),
        Setting(metavar="MODEL", shown=""),
    ] = None
    layers: Annotated[
        int | None,
        Field(ge=1, description="A new draft of N layers with the target's architecture and tokenizer, and --width."),
        Setting(shown=""),
    ] = None
    width: Annotated[int | None, Field(ge=1, description="Of the new draft's hidden states."), Setting(shown="")] = None
    first_layers: Annotated[
        int | None,
        Field(ge=1, description="The first N layers of the target or, where one is given, the draft."),
        Setting(shown=""),
    ] = None
    draft_vocabulary: Annotated[
        int | None,
        Field(ge=1, description="Propose from the N commonest tokens of the training text alone."),
        Setting(shown="the whole"),
    ] = None
    filter: Annotated[
        str | None,
        Field(description="Which tokens count, such as adaspec:keep=0.4, which distils a reference draft first."),
        Setting(metavar="FILTER"),
    ] = None
    on_policy: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Share of the sequences that the draft itself continues, and the target's rows judge.",
        ),
        Setting(metavar="SHARE"),
    ] = 0.0
    refresh_every: Annotated[int, Field(ge=1, description="Steps after which the draft continues anew.")] = 50
    problems: Annotated[
        int | None, Field(ge=1, description="Take the first N."), Setting(shown="all; 500 word problems")
    ] = None
    max_new_tokens: Annotated[int, Field(ge=1, description="Of an answer that the target or the draft gives.")] = 256
    max_length: Annotated[int, Field(ge=2, description="Tokens of a sequence; longer ones are cut.")] = 1024
    held_out: Annotated[
        int,
        Field(
            ge=1,
            description="Documents that choose the best checkpoint, and as many that measure the result; at most "
            "a tenth of all each.",
        ),
    ] = 64
    steps: Annotated[int, Field(ge=1, description="Of the optimiser.")] = 1000
    batch_size: Annotated[int, Field(ge=1, description="Sequences a step, of each process."), Setting(flat="batch")] = (
        16
    )
    gradient_accumulation: Annotated[int, Field(ge=1, description="Batches a step.")] = 1
    learning_rate: Annotated[
        float,
        Field(gt=0, lt=math.inf, description="Of AdamW: reached after 5 % of the steps, then along a cosine to zero."),
        Setting(metavar="RATE"),
    ] = 2e-4
    evaluate_every: Annotated[int, Field(ge=1, description="Steps between evaluations and checkpoints.")] = 100
    num_speculative_tokens: Annotated[
        int, Field(ge=1, description="Proposals per step, of the acceptance length that chooses the best checkpoint.")
    ] = 6
    bfloat16: Annotated[bool, Field(description="Forward passes in bfloat16; weights in float32.")] = False
    cache: Annotated[
        str | None,
        Field(
            description="Keep the target's rows here: the 64 likeliest tokens of each and the mass of the rest, "
            "which makes divergences a little too small."
        ),
        Setting(metavar="DIR"),
    ] = None
    seed: Annotated[int, Field(ge=0, description="Of everything random."), Setting(metavar="S")] = 0
    chat: Annotated[
        bool, Field(description="Prompts are a user's messages, which the target's chat template writes.")
    ] = False
    system: Annotated[str | None, Field(description="System message of a chat.")] = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "loss", str(parse_loss(self.loss)))
        if self.filter is not None:
            object.__setattr__(self, "filter", str(parse_filter(self.filter)))
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
