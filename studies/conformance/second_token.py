"""What an engine writes after the likeliest first token, beside the target's distribution and the draft's.

python -m studies.conformance.second_token vllm '{"plugin": false, "drafts": "bad"}' --output FILE
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from cactus_conform.engine import VOCABULARY, Query, Sampling
from cactus_conform.engines import open_engine
from cactus_conform.models import PROMPTS
from cactus_conform.truth import Truth

from scripts.results import asked, parse, write


def compared(name: str, settings: dict[str, Any], sampling: Sampling, samples: int) -> dict[str, Any]:
    """Return three distributions of the second token."""
    engine = open_engine(name, settings)
    try:
        answers = engine.answer([Query(PROMPTS[0], sampling, seed) for seed in range(samples)])
    finally:
        engine.close()
    truth = Truth()
    first = int(truth.score(PROMPTS[0], [(1, 1)], sampling).target[0].argmax())
    seen = Counter(answer.token_ids[1] for answer in answers if answer.token_ids[0] == first)
    rows = truth.score(PROMPTS[0], [(first, 1)], sampling)
    laws = {"seen": [seen[token] / seen.total() for token in range(VOCABULARY)]}
    laws |= {"target": rows.target[1].tolist(), "draft": rows.draft[1].tolist()}
    return {"engine": engine.name, "first": first, "times": seen.total(), "laws": laws}


if __name__ == "__main__":
    settings = (dict, {"type": json.loads})
    given = parse(
        __doc__, engine=str, settings=settings, draft="bad", temperature=0.5, samples=2000, output=Path("second.json")
    )
    sampling = Sampling(draft=given.draft, temperature=given.temperature, max_tokens=4)
    write(given.output, compared(given.engine, given.settings, sampling, given.samples), asked(given))
