"""What a target's passes cost with the llama.cpp that is installed here: builds for one processor know more of it.

    python builds.py TARGET.gguf

Run it by the interpreter of each build: the result file keeps one set of times by what the build makes use of.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import llama_cpp
from pairing import RESULTS, write

from cactus_decoding import load_pair
from cactus_decoding.core.drafting.measuring import time_passes

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 5
NAME = "builds"


def main() -> None:
    """Time passes on one thread by the processor's clock, the best of some, and add them to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    target = load_pair(f"{parser.parse_args().target}:threads=1,context_size=512", "suffix").target
    features = llama_cpp.llama_print_system_info().decode()
    build = " ".join(part.partition("=")[0].strip() for part in features.split("|") if "AVX" in part)
    taken = time_passes(target, WIDTHS, time.process_time, ROUNDS)
    path = RESULTS / f"{NAME}.json"
    known = json.loads(path.read_text())["results"] if path.exists() else {}
    milliseconds = {str(width): round(1e3 * seconds, 1) for width, seconds in taken.items()}
    write(NAME, {"target": Path(target.name).name}, known | {build: milliseconds})


if __name__ == "__main__":
    main()
