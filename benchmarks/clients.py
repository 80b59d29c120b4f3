"""What clients are answered by `cactus serve`: their request shapes, sent by them, and checked by what they read.

    python clients.py TARGET.gguf --draft DRAFT.gguf --clients PYTHON

PYTHON is that of an environment with openai, langchain-openai, litellm, llama-index-llms-openai-like and
pydantic-ai-slim[openai], which need not have this package nor torch.
It runs clients_asked.py; Open WebUI's requests are recorded ones.
"""

from __future__ import annotations

import json
import os
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairing import ROOT, benchmark
from servers import cactus, running


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    """Print what came back, and end with 1 where it was not as clients need it."""
    options = ["--parallel", given.parallel, "--threads", str(given.threads), "--alias", "ours"]
    options += ["--num-speculative-tokens", given.proposals]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT)))}
    with running(cactus(f"{given.target}:context_size=1024", str(given.draft), *options)) as server:
        command = [given.clients, "-m", "benchmarks.clients_asked", f"http://127.0.0.1:{server.port}/v1"]
        asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    found = json.loads(asked.stdout)
    for row in found["rows"]:
        print("" if row["right"] else "WRONG", row["client"], "|", row["request"], "|", row["answer"])
    yield found
    if not all(row["right"] for row in found["rows"]):
        raise SystemExit(1)


if __name__ == "__main__":
    clients = (None, "the Python that has them", {"type": Path, "required": True})
    benchmark(
        __doc__, "clients_smollm2", measure, target=Path, draft=Path("suffix"), clients=clients, parallel="2",
        proposals="3", threads=1,
    )  # fmt: skip
