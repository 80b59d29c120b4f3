"""How often a server begins with each token under penalties: `python -m studies.conformance.first_token ADDRESS`."""

from __future__ import annotations

from collections import Counter

from cactus_conform.engine import VOCABULARY, Query, Sampling
from cactus_conform.engines import open_engine

from scripts.pages import ROOT
from scripts.results import asked, parse, write

OUTPUT = ROOT / "docs" / "results" / "conformance" / "penalties.json"
PROMPT, SAMPLING = (1, 2, 3), Sampling(presence_penalty=0.8, frequency_penalty=0.6, max_tokens=2)


if __name__ == "__main__":
    given = parse(__doc__, address=str, samples=2000, output=OUTPUT)
    answers = open_engine(given.address).answer([Query(PROMPT, SAMPLING, seed) for seed in range(given.samples)])
    seen = Counter(answer.token_ids[0] for answer in answers)
    write(given.output, {"seen": [seen[token] / given.samples for token in range(VOCABULARY)]}, asked(given))
