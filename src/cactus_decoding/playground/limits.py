"""How much one visitor may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from cactus_decoding.arguments.checks import check_integer


@dataclass(frozen=True)
class Limits:
    """Upper limits that keep one visitor from taking the server away from the others.

    Attributes:
        prompt_characters: length of a prompt.
        new_tokens: length of an answer.
        proposals: tokens that the draft may propose in a step.
        waiting: visitors in the queue.
        runs: finished runs that are kept for what-if questions and downloads; older ones are forgotten.

    Raises:
        ValueError: for a limit below 1.
    """

    prompt_characters: int = 8000
    new_tokens: int = 512
    proposals: int = 64
    waiting: int = 20
    runs: int = 24

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_integer(name, value, 1)

    @property
    def body_bytes(self) -> int:
        """Size of a request: a character takes at most 12 bytes in JSON, and everything beside the prompt is small."""
        return 16 * 1024 + 12 * self.prompt_characters
