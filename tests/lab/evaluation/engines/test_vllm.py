"""What `cactus eval --engine vllm` refuses before vLLM is asked for anything."""

from __future__ import annotations

import pytest

from cactus_decoding import Request
from cactus_decoding.lab.evaluation.engines.vllm import VllmEngine


@pytest.mark.parametrize("how", ["token", "joint"])
def test_trees_are_refused_by_name_with_the_reason(how: str) -> None:
    request = Request(tree="static=2.2", verification=how)
    with pytest.raises(ValueError, match="vLLM, which has removed tree attention, reads chains of proposals only"):
        VllmEngine("target", "draft", {}).check(request)
