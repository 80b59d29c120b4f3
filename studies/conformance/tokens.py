"""What an engine writes in one place, counted over seeds, where checks found it wrong.

python -m studies.conformance.tokens first ADDRESS             of a server, under penalties
python -m studies.conformance.tokens second vllm --settings '{"plugin": false, "drafts": "bad"}'
                                                               after the likeliest first token
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cactus_conform.engine import VOCABULARY, Query, Sampling
from cactus_conform.engines import open_engine
from cactus_conform.models import PROMPTS
from cactus_conform.truth import Truth

from scripts.pages import ROOT
from scripts.results import asked, parse, write

RESULTS = ROOT / "docs" / "results" / "conformance"
FILES = {"first": RESULTS / "penalties.json", "second": RESULTS / "vllm_second_token.json"}
PENALTIES = Sampling(presence_penalty=0.8, frequency_penalty=0.6, max_tokens=2)


def counted(given: Namespace, prompt: Sequence[int], sampling: Sampling) -> tuple[str, list[Sequence[int]]]:
    """Return the engine's name, and its answers to a prompt, one for each seed."""
    engine = open_engine(given.engine, given.settings)
    try:
        answers = engine.answer([Query(tuple(prompt), sampling, seed) for seed in range(given.samples)])
        return engine.name, [answer.token_ids for answer in answers]
    finally:
        engine.close()


def shares(seen: Counter[int]) -> list[float]:
    return [seen[token] / seen.total() for token in range(VOCABULARY)]


def first(given: Namespace) -> dict[str, Any]:
    """Return the distribution of the first token under penalties."""
    return {"seen": shares(Counter(answer[0] for answer in counted(given, PROMPTS[0], PENALTIES)[1]))}


def second(given: Namespace) -> dict[str, Any]:
    """Return three distributions of the second token."""
    sampling, truth = Sampling(draft=given.draft, temperature=given.temperature, max_tokens=4), Truth()
    name, answers = counted(given, PROMPTS[0], sampling)
    likeliest = int(truth.score(PROMPTS[0], [(1, 1)], sampling).target[0].argmax())
    seen = Counter(answer[1] for answer in answers if answer[0] == likeliest)
    rows = truth.score(PROMPTS[0], [(likeliest, 1)], sampling)
    laws = {"seen": shares(seen), "target": rows.target[1].tolist(), "draft": rows.draft[1].tolist()}
    return {"engine": name, "first": likeliest, "times": seen.total(), "laws": laws}


if __name__ == "__main__":
    given = parse(
        __doc__, token=(str, {"choices": [*FILES]}), engine=str, settings=({}, {"type": json.loads}), draft="bad",
        temperature=0.5, samples=2000, output=(None, {"type": Path}),
    )  # fmt: skip
    found = first(given) if given.token == "first" else second(given)
    write(given.output or FILES[given.token], found, asked(given))
