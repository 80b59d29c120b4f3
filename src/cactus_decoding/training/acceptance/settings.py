"""All that a training of a draft is asked for, checked once."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from cactus_decoding.arguments.knobs import Knob, check_knobs
from cactus_decoding.training.acceptance.filters import parse_filter
from cactus_decoding.training.acceptance.losses import parse_loss


@dataclass(frozen=True)
class TrainingSettings:
    """How a draft is trained, and from what.

    Exactly one of ``draft``, ``layers`` with ``width``, and ``first_layers`` says where it starts.

    Attributes:
        target: the verifying model: a folder, a name on the hub, or ``bundled``.
        data: JSON Lines of objects with a ``prompt`` (the target answers it), a ``prompt`` and a ``completion``, or a
            ``text``; or a task such as ``word_problems:split=train``, whose prompts the target answers.
        loss: such as ``lk``; see `LOSSES`.
        draft: the draft to start from: a folder, a name on the hub, or a bundled draft's name.
        layers: of a new draft with the target's architecture and tokenizer.
        width: of its hidden states; a multiple of the width of the target's attention heads.
        first_layers: start from so many of the target's own first layers.
        filter: such as ``adaspec:keep=0.4``; see `FILTERS`.
        on_policy: the share of sequences that the draft itself continues, and the target's rows judge.
        refresh_every: steps after which the draft continues anew.
        problems: how many of a task's problems or a file's objects are taken, the first; all, if None.
        max_new_tokens: of an answer that the target or the draft gives.
        max_length: tokens of a sequence; what is longer is cut.
        held_out: prompts (or texts) that choose the best checkpoint, and as many others that measure the result; of
            few a tenth each.
        steps: of the optimiser.
        batch_size: sequences a step, of each process.
        gradient_accumulation: batches a step.
        learning_rate: of AdamW, reached after 5 % of the steps and brought to zero along a cosine.
        evaluate_every: steps between evaluations, each of which leaves a checkpoint.
        num_speculative_tokens: proposals per step, of the acceptance_length that chooses the best checkpoint: that of
            lossless verification, or of the rule that the loss trains for.
        bfloat16: whether forward passes are taken in bfloat16 (weights stay in float32).
        cache: a folder where the target's rows are kept, coarsely; see `RowCache`.
        seed: of everything random.

    Raises:
        TypeError, ValueError: for what is out of range or does not go together.

    Example:
        >>> TrainingSettings("bundled", "prompts.jsonl", draft="bundled:worded").loss
        'lk'
    """

    target: str
    data: str
    loss: str = "lk"
    draft: str | None = None
    layers: Annotated[int | None, Knob(ge=1)] = None
    width: Annotated[int | None, Knob(ge=1)] = None
    first_layers: Annotated[int | None, Knob(ge=1)] = None
    filter: str | None = None
    on_policy: Annotated[float, Knob(ge=0, le=1)] = 0.0
    refresh_every: Annotated[int, Knob(ge=1)] = 50
    problems: Annotated[int | None, Knob(ge=1)] = None
    max_new_tokens: Annotated[int, Knob(ge=1)] = 256
    max_length: Annotated[int, Knob(ge=2)] = 1024
    held_out: Annotated[int, Knob(ge=1)] = 64
    steps: Annotated[int, Knob(ge=1)] = 1000
    batch_size: Annotated[int, Knob(ge=1)] = 16
    gradient_accumulation: Annotated[int, Knob(ge=1)] = 1
    learning_rate: Annotated[float, Knob(gt=0, lt=math.inf)] = 2e-4
    evaluate_every: Annotated[int, Knob(ge=1)] = 100
    num_speculative_tokens: Annotated[int, Knob(ge=1)] = 6
    bfloat16: bool = False
    cache: str | None = None
    seed: Annotated[int, Knob(ge=0)] = 0

    def __post_init__(self) -> None:
        """Check the settings, each for itself and all together."""
        check_knobs(self)
        object.__setattr__(self, "loss", str(parse_loss(self.loss)))
        if self.filter is not None:
            object.__setattr__(self, "filter", str(parse_filter(self.filter)))
        if (self.layers is None) != (self.width is None):
            raise ValueError("layers and width go together: give both for a new draft")
        starts = [self.draft is not None, self.layers is not None, self.first_layers is not None]
        if sum(starts) != 1:
            raise ValueError(
                "give one start: a draft, layers and width for a new one, or first_layers of the target; "
                f"{'several' if any(starts) else 'none'} of them are given"
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
        """Return the settings as plain values, for JSON."""
        return asdict(self)
