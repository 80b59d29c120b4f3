"""Prompts of several kinds, which models are asked and timed on where a user gives none."""

from __future__ import annotations

_CODE = """def total(prices, rate):
    result = 0
    for price in prices:
        result += price * (1 + rate)
    return result
"""
_LETTER = (
    "Dear team, we has moved the meeting from tuesday to thursday, becuase the room is taken. Please bring the figures "
    "of the last quarter, and tell Mara if you can not come. Best wishes, Jon"
)
PROMPTS = (
    "Explain in a few sentences why the sky is blue and sunsets are red.",
    f"Correct the mistakes in this letter, and change nothing else:\n\n{_LETTER}",
    "Write a Python function that returns the prime factors of a number, with a docstring.",
    f"Add type hints and a docstring to this function, and repeat it whole:\n\n{_CODE}",
    "A train leaves at 9:40 and takes 2 hours and 35 minutes. When does it arrive? Show each step.",
    f"Summarise this letter in one sentence:\n\n{_LETTER}",
    "Name the planets of the solar system as a JSON list of objects with a name and a diameter in kilometres.",
    "What speaks for and against living in a small town? Give three points each.",
    f"Translate this letter into French:\n\n{_LETTER}",
    "Write the beginning of a story about a lighthouse keeper who finds a map.",
)
