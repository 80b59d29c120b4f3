"""Grade-school word problems of this project: training data, and a held-out task without downloads."""

from cactus_decoding.zoo.word_problems.generator import (
    EXAMPLES,
    Example,
    WordProblem,
    as_prompt,
    extract_answer,
    format_prompt,
    is_prompt,
    split_of,
    word_problems,
)

__all__ = [
    "EXAMPLES",
    "Example",
    "WordProblem",
    "as_prompt",
    "extract_answer",
    "format_prompt",
    "is_prompt",
    "split_of",
    "word_problems",
]
