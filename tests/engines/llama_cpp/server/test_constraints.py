"""Grammars that never end, or end their process, are refused; the next one is compiled as if nothing had been."""

from __future__ import annotations

import pytest
from support.constraints import bundled_vocabulary, byte_vocabulary, schema_of
from support.tables import all_of

from cactus_decoding import load_pair
from cactus_decoding.core.constraints import compiling
from cactus_decoding.core.constraints.base import Grammar
from cactus_decoding.core.constraints.compiling import CompilerVocabulary
from cactus_decoding.engines.llama_cpp.server.constraints import ConstraintMaker, GrammarWorker


def chained(rules: int) -> Grammar:
    """Return rules of which each names the next: the compiler's work grows faster than their number, and its stack."""
    lines = [f"r{i} ::= r{i + 1}" for i in range(rules)]
    return Grammar("gbnf", "\n".join(["root ::= r0", *lines, f'r{rules} ::= "a"']), "it")


REFUSED = {
    "a chain": (chained(3_000), "it needs more memory, or nests more deeply, than is allowed"),
    "alternatives": (Grammar("gbnf", "root ::= " + " | ".join(f'"{i}"' for i in range(20_000)), "it"), "max is 2000"),
    "parentheses": (Grammar("gbnf", "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "it"), "it nests too deeply"),
    "parentheses of Lark": (Grammar("lark", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000, "it"), "deeply nested"),
    "of an expression": (Grammar("regex", "(" * 30_000 + "a" + ")" * 30_000, "it"), "maximum number of nested"),
    "properties": (schema_of({"properties": {f"p{i}": {} for i in range(3_000)}, "type": "object"}), "max is 2000"),
    "patterns": (
        schema_of({"allOf": [{"type": "string", "pattern": f"{i}.*{i}"} for i in range(39)]}), "too hard to combine",
    ),
    "words": (Grammar("gbnf", "frob", "it"), "Expected ::="),
}  # fmt: skip


@pytest.fixture(scope="module")
def worker():
    made = GrammarWorker(CompilerVocabulary([bytes([i]) for i in range(256)] + [b"</s>"], [], [256]), seconds=60.0)
    yield made
    made.close()


@all_of("case", REFUSED)
def test_a_grammar_beyond_a_limit_is_refused_and_the_next_one_is_not(worker, case):
    grammar, said = REFUSED[case]
    with pytest.raises(ValueError, match=f"^cannot read .*{said}") as error:
        worker.check(grammar)
    assert len(str(error.value)) < 250
    fine = worker.check(schema_of({"type": "string", "maxLength": 20_000}))
    assert byte_vocabulary().constraint(fine).allowed([]).nonzero().flatten().tolist() == [ord('"')]


def test_a_grammar_that_takes_too_long_is_refused_and_the_next_one_is_not():
    made = GrammarWorker(CompilerVocabulary([b"a", b"</s>"], [], [1]), seconds=0.5)
    with pytest.raises(ValueError, match=r"^cannot read it: it takes longer than 0.5 seconds to compile"):
        made.check(chained(14_000))  # which would take many seconds
    made._seconds = 60.0
    assert made.check(Grammar("regex", "a+", "it"))
    made.close()


def test_a_process_that_dies_is_replaced(worker):
    worker.start()
    first = worker._process
    assert worker.check(Grammar("regex", "a+", "it"))
    first.kill()
    first.wait()
    assert worker.check(Grammar("regex", "b+", "it"))
    assert worker._process is not first
    worker._process.stdin.close()  # a process that dies of a grammar: the line cannot be sent
    with pytest.raises(ValueError, match="cannot read it: "):
        worker.check(Grammar("regex", "c+", "it"))
    assert worker.check(Grammar("regex", "c+", "it"))


def test_what_was_compiled_is_not_compiled_again(gguf):
    maker, grammar = ConstraintMaker(load_pair(gguf("target"), "ngram")), Grammar("regex", "[1-3]{3}", "it")
    first = maker.make(grammar).allowed([])
    maker.close()  # afterwards nothing can be compiled
    assert maker.make(grammar).allowed([]).tolist() == first.tolist()
    with pytest.raises(ValueError, match="the server stops"):
        maker.make(Grammar("regex", "[1-4]{3}", "it"))


def test_of_several_parts_the_one_that_cannot_be_compiled_is_named(worker):
    parts = [Grammar("regex", "a", f"part {i}") for i in range(31)]
    parts[17] = Grammar("regex", "(a", "part 17")
    with pytest.raises(ValueError, match=r"^cannot read part 17: "):
        worker.check(Grammar("regex", "(a|b", "the whole", tuple(parts)))


def test_a_closed_worker_compiles_nothing():
    made = GrammarWorker(CompilerVocabulary([b"a", b"</s>"], [], [1]))
    made.close()
    with pytest.raises(ValueError, match="the server stops"):
        made.check(Grammar("regex", "a", "it"))


def test_the_process_tries_what_is_compiled_here():
    """Whatever passes there passes here: the same functions, limits and tokens, on a smaller stack."""
    vocabulary, _ = bundled_vocabulary()
    grammar = schema_of({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    compiled = compiling.try_out(vocabulary.tokenizer, grammar.kind, grammar.text)
    assert compiled == compiling.translate(grammar.kind, grammar.text)
    assert vocabulary.constraint(compiled).forced([], 99) == vocabulary.constraint(grammar).forced([], 99)
