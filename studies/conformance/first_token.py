"""How often a server begins with each token under penalties: `python -m studies.conformance.first_token ADDRESS`."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from cactus_conform.engine import VOCABULARY, Query, Sampling
from cactus_conform.engines import open_engine

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import as_json, write_atomically

OUTPUT = Path(__file__).resolve().parents[2] / "docs" / "results" / "conformance" / "penalties.json"
PROMPT, SAMPLING = (1, 2, 3), Sampling(presence_penalty=0.8, frequency_penalty=0.6, max_tokens=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    answers = open_engine(given.address).answer([Query(PROMPT, SAMPLING, seed) for seed in range(given.samples)])
    seen = Counter(answer.token_ids[0] for answer in answers)
    shares = [seen[token] / given.samples for token in range(VOCABULARY)]
    about = provenance({"address": given.address, "samples": given.samples})
    write_atomically(given.output, as_json({"seen": shares, "provenance": about}, indent=1) + "\n")


if __name__ == "__main__":
    main()
