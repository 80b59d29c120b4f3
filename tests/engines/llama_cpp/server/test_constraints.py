"""Grammars of several clients at once: a slow one does not hold up the others."""

from __future__ import annotations

import threading
import time

import pytest

from cactus_decoding import load_pair
from cactus_decoding.core.constraints.base import Grammar
from cactus_decoding.engines.llama_cpp.server.constraints import ConstraintMaker

SLOW = Grammar(
    "gbnf", "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(14_000)), 'r14000 ::= "a"']), "it"
)
"""Which would take many seconds."""


@pytest.mark.slow
def test_another_grammar_is_compiled_while_one_takes_its_whole_time(gguf):
    maker, ended = ConstraintMaker(load_pair(gguf("target"), "ngram"), seconds=8.0), list[str]()

    def compile_slowly() -> None:
        with pytest.raises(ValueError, match=r"cannot read it: it (takes longer|needs more)"):
            maker.make(SLOW)
        ended.append("slow")

    maker.prepare()
    slow = threading.Thread(target=compile_slowly)
    slow.start()
    while maker._free.qsize() == 2:  # until the slow one has its worker
        time.sleep(0.01)
    maker.make(Grammar("regex", "[0-9]+", "it"))
    maker.make(Grammar("regex", "[0-9]+", "it"))  # which is kept
    ended.append("fast")
    slow.join()
    maker.close()
    assert ended == ["fast", "slow"]
