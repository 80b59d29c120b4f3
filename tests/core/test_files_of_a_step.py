"""How many files of the package a step executes: what somebody reads who follows one."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from types import FrameType

import pytest

import cactus_decoding
from cactus_decoding import load_pair, stream
from cactus_decoding.zoo.word_problems import EXAMPLES

ROOT = Path(cactus_decoding.__file__).parent
RELAXED = {"rule": "clamped:width=1"}


def files_of_steps(settings: dict, before: int = 2, count: int = 3) -> set[str]:
    """Return the files whose functions are called in steps of a response that is under way."""
    response, found = stream(load_pair(), EXAMPLES[0].prompt, seed=0, **settings), set()
    assert len([*islice(response, before)]) == before

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            found.add(str(path.relative_to(ROOT)))

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        assert len([*islice(response, count)]) == count
    finally:
        sys.setprofile(previous)
    return found


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({}, 20),
        (RELAXED, 21),
        ({**RELAXED, "budget_nats": 5.0, "protect": "digits"}, 25),
        ({**RELAXED, "tree": "static=3.2.1"}, 25),
    ],
    ids=["lossless", "clamped", "budget and digits", "tree"],
)
def test_a_step_executes_few_files(settings: dict, most: int) -> None:
    files_of_steps(settings)  # what is used for the first time is imported
    found = files_of_steps(settings)
    assert {"core/loop.py", "core/verification/walk.py", "engines/transformers/forward.py"} <= found
    assert len(found) <= most, f"{len(found)}: {', '.join(sorted(found))}"
