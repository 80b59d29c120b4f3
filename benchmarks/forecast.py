"""What `cactus tune` forecasts beside what the same ways then take: the speed of GSM8K answers, behind their prompts.

    cactus tune target.gguf draft.gguf --task gsm8k:path=FOLDER/gsm8k_test.jsonl --chat --temperature 0 --threads 1
        --output profile.json
    python benchmarks/forecast.py profile.json target.gguf draft.gguf --data FOLDER

One thread, by the processor's clock, as `benchmarks/never_slower.py` measures, on the prompts that were tuned on, each
way in turn. Answers that the output file has are not made again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from never_slower import Contenders, prompts
from pairing import RESULTS

from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import write_atomically

WAYS = ("none", "draft@1", "draft@3", "draft@7", "suffix@3", "none@again")


def forecast_of(profile: dict[str, Any], way: str) -> dict[str, Any]:
    """Return tokens per second, and their ratio to none, that a profile forecasts of a way."""
    source, _, count = way.partition("@")
    wanted = 0 if source == "none" else int(count)
    for each in profile["forecasts"]:
        if each["num_speculative_tokens"] == wanted and (each["draft"] != "suffix") == (source == "draft"):
            return {"tokens_per_second": each["tokens_per_second"], "speedup": each["speedup"][0]}
    raise ValueError(f"the profile has no forecast of {way}")


def main() -> None:
    """Answer what is missing, and write after each prompt."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--output", type=Path, default=RESULTS / "forecast.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    profile = json.loads(given.profile.read_text())
    forecasts = {way: forecast_of(profile, way) for way in WAYS}
    runs = json.loads(given.output.read_text())["answers"] if given.output.exists() else {}
    contenders = Contenders(given.target, given.draft, 1, given.tokens)
    about = {"target": Path(given.target).name, "draft": Path(given.draft).name, "tokens": given.tokens, "threads": 1}
    for i, text in enumerate(prompts(given.data, given.prompts)["math"]):
        for way in WAYS:
            if f"{i}/{way}" not in runs:
                runs[f"{i}/{way}"] = contenders.answer(way, text)
                print(f"{i}/{way}: {runs[f'{i}/{way}']}", flush=True)
        content = {"forecasts": forecasts, "tuned": {name: profile[name] for name in ("times", "prompts", "tokens")}}
        content |= {"answers": runs, "provenance": provenance(about)}
        write_atomically(given.output, json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
