"""Engines by name."""

from __future__ import annotations

import pytest

from cactus_decoding.lab.evaluation.engines.loading import load_engine


def test_unknown_engines_and_arguments_that_are_not_theirs_are_refused():
    with pytest.raises(ValueError, match="engine must be one of transformers, llama-cpp, vllm"):
        load_engine("magic", "bundled", "bundled", audited=True)
    with pytest.raises(ValueError, match="--engine-args is for --engine vllm"):
        load_engine("transformers", "bundled", "bundled", audited=True, engine_arguments="{}")
