"""What vLLM reads from the environment, as benchmarks of it set it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

COMMON = {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false"}
ON_CPUS = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}  # fmt: skip
"""One process for an engine, and all cores for its passes: those that wait for each other would take some."""


def set_environment(threads: int) -> None:
    """Set it for processes that are started from now on: on a machine with a GPU only the runner.

    What the user has set stays, but for the number of threads.
    """
    wanted = dict(COMMON)
    if not torch.cuda.is_available():
        # It asks for Intel's OpenMP, which its set-up installs, and for TCMalloc, which the system may have.
        libraries = [Path(sys.prefix) / "lib" / "libiomp5.so", *Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4")]
        preloaded = [*os.environ.get("LD_PRELOAD", "").split(":"), *(str(each) for each in libraries if each.exists())]
        os.environ["LD_PRELOAD"] = ":".join(dict.fromkeys(filter(None, preloaded)))
        os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
        wanted |= ON_CPUS
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
