"""Grade-school word problems that the project writes itself: training data, and a held-out task without downloads."""

from cactus_decoding.zoo.word_problems.generator import (
    WordProblem,
    extract_answer,
    format_prompt,
    is_prompt,
    split_of,
    word_problems,
)

__all__ = ["WordProblem", "extract_answer", "format_prompt", "is_prompt", "split_of", "word_problems"]
