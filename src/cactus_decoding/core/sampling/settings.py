"""What users set of sampling, known without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from cactus_decoding.core.knobs import Knob


@dataclass(frozen=True)
class SamplingSettings:
    """The knobs of `SamplingParams`, which says what they do."""

    temperature: Annotated[float, Knob(
        "0 takes the most likely token; 1 leaves the model's probabilities as they are.", ge=0, lt=math.inf,
        metavar="T")] = 1.0  # fmt: skip
    top_k: Annotated[int, Knob(
        "How many of the most likely tokens are kept; 0 keeps all.", "tokens", ge=0, metavar="K")] = 0  # fmt: skip
    top_p: Annotated[float, Knob("The probability mass that is kept, in (0, 1].", gt=0, le=1, metavar="P")] = 1.0
    min_p: Annotated[float, Knob(
        "Least probability kept, relative to the likeliest token's, in [0, 1].", ge=0, le=1,
        metavar="P")] = 0.0  # fmt: skip
