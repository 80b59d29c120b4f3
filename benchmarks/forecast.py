"""What `cactus tune` forecasts beside what the same ways then take: the speed of GSM8K answers, behind their prompts.

    cactus tune target.gguf draft.gguf --task gsm8k:path=FOLDER/gsm8k_test.jsonl --chat --temperature 0 --threads 1
        --output profile.json
    python benchmarks/forecast.py profile.json target.gguf draft.gguf --data FOLDER

One thread, by the processor's clock, as `benchmarks/never_slower.py` measures, on the prompts that were tuned on, each
way in turn. Answers that the output file has are not made again.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from never_slower import Contenders, prompts
from pairing import benchmark, read

WAYS = ("none", "draft@1", "draft@3", "draft@7", "suffix@3", "none@again")


def forecast_of(profile: dict[str, Any], way: str) -> dict[str, Any]:
    """Return tokens per second, and their ratio to none, that a profile forecasts of a way."""
    source, _, count = way.partition("@")
    wanted = 0 if source == "none" else int(count)
    for each in profile["forecasts"]:
        if each["num_speculative_tokens"] == wanted and (each["draft"] != "suffix") == (source == "draft"):
            return {"tokens_per_second": each["tokens_per_second"], "speedup": each["speedup"][0]}
    raise ValueError(f"the profile has no forecast of {way}")


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    """Answer what is missing; yields after each prompt."""
    profile = read(given.profile)
    content = {
        "forecasts": {way: forecast_of(profile, way) for way in WAYS},
        "tuned": {name: profile[name] for name in ("times", "prompts", "tokens")},
        "answers": read(given.output)["answers"] if given.output.exists() else {},
    }
    how = {"temperature": 0.0, "verification": "token"}
    contenders = Contenders(str(given.target), str(given.draft), given.threads, given.tokens, how)
    for i, text in enumerate(prompts(given.data, given.prompts, bundled=False)["math"]):
        for way in WAYS:
            if f"{i}/{way}" not in content["answers"]:
                content["answers"][f"{i}/{way}"] = contenders.answer(way, text)
                print(f"{i}/{way}: {content['answers'][f'{i}/{way}']}", flush=True)
        yield content


if __name__ == "__main__":
    data = (None, {"type": Path, "required": True})
    benchmark(
        __doc__, "forecast", measure, profile=Path, target=Path, draft=Path, data=data, prompts=5, threads=1,
        tokens=(64, "of each answer"),
    )  # fmt: skip
