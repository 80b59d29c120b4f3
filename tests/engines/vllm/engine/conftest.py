"""Tests on the real engine: they run in its own environment, and where vLLM is absent they are not collected at all."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["*.py"]
