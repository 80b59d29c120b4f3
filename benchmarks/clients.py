"""What clients are answered by `cactus serve`: their request shapes, sent by them, and checked by what they read.

    python clients.py TARGET.gguf --draft DRAFT.gguf --clients PYTHON --output FILE

PYTHON is that of an environment with openai, langchain-openai, litellm, llama-index-llms-openai-like and
pydantic-ai-slim[openai], which need not have this package nor torch.
It runs clients_asked.py; Open WebUI's requests are recorded ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from servers import cactus, running

from cactus_decoding.core.files.provenance import provenance

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Print what came back; the exit code says whether all of it was as clients need it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--clients", type=Path, required=True, help="the Python that has them")
    parser.add_argument("--parallel", default="2")
    parser.add_argument("--proposals", default="3")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    options = ["--parallel", given.parallel, "--threads", given.threads, "--alias", "ours"]
    options += ["--num-speculative-tokens", given.proposals]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT)))}
    with running(cactus(f"{given.target}:context_size=1024", given.draft, *options)) as server:
        command = [given.clients, "-m", "benchmarks.clients_asked", f"http://127.0.0.1:{server.port}/v1"]
        asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    found = json.loads(asked.stdout)
    for row in found["rows"]:
        print("" if row["right"] else "WRONG", row["client"], "|", row["request"], "|", row["answer"])
    said = {name: Path(value).name for name, value in vars(given).items() if name not in ("clients", "output")}
    given.output.write_text(json.dumps(found | {"provenance": provenance(said)}, indent=1) + "\n")
    return 0 if all(row["right"] for row in found["rows"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
