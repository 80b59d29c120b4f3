"""What a target's passes cost with the llama.cpp that is installed here: builds for one processor know more of it.

    python builds.py TARGET.gguf

Run it by the interpreter of each build: the result file keeps one set of times by what the build makes use of. Passes
are timed on one thread by the processor's clock, the best of some.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
from pairing import benchmark, read

from cactus_decoding import load_pair
from cactus_decoding.core.drafting.measuring import time_passes

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 5


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    target = load_pair(f"{given.target}:threads=1,context_size=512", "suffix").target
    features = llama_cpp.llama_print_system_info().decode()
    build = " ".join(part.partition("=")[0].strip() for part in features.split("|") if "AVX" in part)
    taken = time_passes(target, WIDTHS, time.process_time, ROUNDS)
    known = read(given.output)["results"] if given.output.exists() else {}
    milliseconds = {str(width): round(1e3 * seconds, 1) for width, seconds in taken.items()}
    yield {"results": known | {build: milliseconds}}


if __name__ == "__main__":
    benchmark(__doc__, "builds", measure, target=Path)
