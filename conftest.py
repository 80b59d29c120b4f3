"""Collection of tests and doctests: the one module that cannot be imported with the core dependencies alone."""

from __future__ import annotations

import os
from importlib.util import find_spec

# Without a GPU the Triton kernel runs in Triton's interpreter, which must be chosen before the kernel is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

collect_ignore = [] if find_spec("triton") else ["src/cactus_decoding/kernels/triton_kernel.py"]
