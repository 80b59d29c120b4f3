"""Drafts from the target itself: what is kept of them, what they cost, and what `cactus tune` forecasts of them.

    python benchmarks/self_drafts.py bundled SMOLLM2 QWEN_1.5B --minutes 4

Targets are the bundled one and folders of transformers, which `benchmarks/unpack.py` makes of GGUF files. Each is
tuned, by one thread, with these drafts: what `skip` would choose from, early exits after a quarter, half and three
quarters of the layers, and look-up; the bundled target with its own drafts too. Targets that the output file has are
not measured again.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pairing import benchmark, kept

from cactus_decoding import Lossless, Request, load_pair
from cactus_decoding.core.drafting.registry import LOOK_UP
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.engines.transformers.skip import EarlyExit, Skip
from cactus_decoding.engines.transformers.skip_choice import best_of, candidates
from cactus_decoding.engines.transformers.sublayers import layers_of, parts_of
from cactus_decoding.lab.tuning.tuning import tune
from cactus_decoding.zoo import BUNDLED, DRAFTS


def tuned(name: str, minutes: float, num_prompts: int) -> dict[str, Any]:
    """Return what each draft of a target brings at its best number of proposals, and how long choosing took."""
    pair = load_pair(name, LOOK_UP)
    prompts, began = pair.sample_prompts()[:num_prompts], time.process_time()
    found = candidates(pair.target.model, [pair.tokenizer(each).input_ids for each in prompts])
    choosing = time.process_time() - began
    layers, parts = len(layers_of(pair.target.model)), parts_of(pair.target.model)
    skips = [str(Skip.of_parts(each.skipped, parts)) for each in found]
    exits = [str(EarlyExit(max(layers * quarter // 4, 1)).of(pair.target.model).name_or_path) for quarter in (1, 2, 3)]
    own = [f"{BUNDLED}:{each}" for each in DRAFTS] if name == BUNDLED else []
    drafts: dict[str, Any] = {each: pair.with_draft(each).drafter for each in [*skips, *exits, *own]}
    told = tune(
        pair, drafts, prompts, Request(num_speculative_tokens=0, max_new_tokens=128, seed=0), [Lossless()],
        seconds=60 * minutes, thread_counts=[torch.get_num_threads()], report=lambda *_: None,
    )  # fmt: skip
    rows = []
    for draft in [*drafts, LOOK_UP]:
        best = max((each for each in told.found[1:] if each.draft == draft), key=lambda each: each.tokens_per_second)
        row = {
            "draft": draft, "num_speculative_tokens": best.num_speculative_tokens,
            "tokens_per_step": best.tokens_per_step, "speedup": [*best.speedup],
        }  # fmt: skip
        if draft != LOOK_UP:
            cost = told.drafts[draft].draft / told.times.of(1)
            row |= {"cost": cost, "acceptance": told.acceptance(draft, "lossless")}
        rows.append(row)
    return {
        "rows": rows, "chosen": skips[found.index(best_of(found))], "choosing_seconds": choosing, "layers": layers,
        "times": told.times.as_dict()["target"], "tokens": sum(len(each.token_ids) for each in told.answers),
        "prompts": len(told.answers), "dtype": str(pair.target.model.dtype).removeprefix("torch."),
    }  # fmt: skip


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    results = kept(given.output, "results")
    for path in given.targets:
        if path.name not in results:
            results[path.name] = tuned(str(path), given.minutes, given.prompts)
            results[path.name]["provenance"] = provenance({"minutes": given.minutes, "prompts": given.prompts})
            print(json.dumps(results[path.name]["rows"], indent=1), flush=True)
            yield {"results": results}


if __name__ == "__main__":
    benchmark(
        __doc__, "self_drafts", measure, targets=[Path], threads=1,
        minutes=(4.0, "for tuning each target, beside choosing"), prompts=(10, "of ten, to choose and to tune by"),
    )  # fmt: skip
