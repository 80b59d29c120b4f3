"""From a grammar to what llguidance follows, within limits; the worker process runs this file, without torch."""

from __future__ import annotations

import json
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

JSON_OPTIONS: Any = {
    # spaces are written in one way, that of Python's json.dumps, which models have often seen: none writes
    # spaces without end, and most of what stands between two values is forced
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    # without \uXXXX, which could write a key a second way, and halves of surrogate pairs, which are no text
    "json_allowed_escapes": '"\\nrtbf',
}
LIMITS = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 100_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""llguidance's own, for a grammar and for each mask.

A mask takes at most some tens of milliseconds; the states of a response, of 1 to 2 kB each, at most 200 MB.
"""
_TRIED_TOKENS = 16
_WORKER_STACK, _WORKER_MEMORY = 2**20, 4 * 2**30


class CompilerVocabulary:
    """The part of a tokenizer that llguidance asks for.

    Args:
        tokens: what each token adds to a text, in bytes; nothing for one that is never written.
        encode: the model's own tokens of a text. They decide how forced texts are spelled; where these tokens do not
            join to the text, or nothing is given, the longest tokens are taken from left to right.
    """

    bos_token_id = None

    def __init__(
        self,
        tokens: Sequence[bytes],
        special: Iterable[int],
        ends: Sequence[int],
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.special_token_ids = sorted({*special, *ends})
        hidden, self.ends = frozenset(self.special_token_ids), list(ends)
        self.tokens, self.eos_token_id, self._encode = list(tokens), self.ends[0], encode
        self._texts = [b"" if i in hidden else token for i, token in enumerate(self.tokens)]
        self._ids = {token: i for i, token in reversed([*enumerate(self._texts)]) if token}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
        if self._encode is not None:
            try:
                ids = self._encode(data.decode())
            except UnicodeDecodeError:
                ids = []
            if b"".join(self._texts[i] for i in ids) == data:
                return ids
        return self._longest_tokens(data)

    def _longest_tokens(self, data: bytes) -> list[int]:
        ids, at = list[int](), 0
        while at < len(data):
            for size in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + size])
                if token is not None:
                    ids.append(token)
                    at += size
                    break
            else:
                return ids  # no token for this byte: what is left cannot be written
        return ids

    def llguidance(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), eos_token=self.ends)


def translate(kind: str, text: str) -> str:
    """Return a grammar in llguidance's own form; raise `ValueError` for one that cannot be read."""
    from llguidance import LLMatcher

    if kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(text, overrides=JSON_OPTIONS))
    if kind == "regex":
        return str(LLMatcher.grammar_from_regex(text))
    if kind == "lark":
        return str(LLMatcher.grammar_from_lark(text))
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(LLMatcher.grammar_from_lark(gbnf_to_lark(text)))
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except Exception as error:  # the converter raises what it comes across
        raise ValueError(str(error) or type(error).__name__) from None


def matcher_of(tokenizer: Any, grammar: str) -> Any:
    """Return llguidance's matcher of a grammar in its own form; raise `ValueError` for one beyond its limits."""
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS))  # type: ignore[arg-type]
    if matcher.is_error():
        raise ValueError(one_line(matcher.get_error()))
    return matcher


def one_line(message: str) -> str:
    """Return an error of llguidance's in one line of ordinary length, in this package's words where it has some."""
    line = " ".join(message.partition("<non-verbose/>")[0].split())
    if line.startswith("oneOf constraints are not supported"):
        return "oneOf is supported where no answer fits two of its options: write anyOf"
    if line.startswith("Unable to determine if regex is empty"):
        return "it has patterns that must hold together, and these are too hard to combine"
    if found := re.search(r"regex parse error: .*? error: ([^|]+?)(?: \d+ \||$)", line):
        return found[1]
    return line if len(line) <= 160 else f"{line[:157]}..."


def try_out(tokenizer: Any, kind: str, text: str) -> str:
    """Translate and compile a grammar, and follow it for some tokens; return it in llguidance's own form."""
    import numpy as np

    grammar = translate(kind, text)
    matcher, numbers = matcher_of(tokenizer, grammar), random.Random(0)
    for _ in range(_TRIED_TOKENS):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if matcher.is_error():
            raise ValueError(one_line(matcher.get_error()))
        ids = np.flatnonzero(bits)
        if matcher.is_stopped() or not len(ids):
            break
        token = int(numbers.choice(ids))
        if token in tokenizer.eos_tokens:
            break
        matcher.consume_token(token)
    return grammar


def work() -> None:
    """Answer lines of JSON from stdin: first a vocabulary, and then grammars, one at a time."""
    import llguidance  # noqa: F401  # so that no grammar waits for it
    import numpy  # noqa: F401

    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_WORKER_MEMORY, _WORKER_MEMORY))
    except (ImportError, ValueError, OSError):  # such as on Windows, or under a smaller limit
        pass
    # what overflows a small stack here does not overflow a larger one in the server
    threading.stack_size(_WORKER_STACK)
    given, tokenizer = json.loads(sys.stdin.buffer.readline()), None
    tokens = [token.encode("latin-1") for token in given["tokens"]]
    tokenizer = CompilerVocabulary(tokens, given["special"], given["ends"]).llguidance()
    _reply({"ready": True})
    for line in sys.stdin.buffer:
        asked, answers = json.loads(line), list[dict[str, str]]()

        def answer(asked: Any = asked, answers: list[dict[str, str]] = answers) -> None:
            try:
                answers.append({"grammar": try_out(tokenizer, asked["kind"], asked["text"])})
            except BaseException as error:  # Rust's panics are no Exception
                answers.append({"error": one_line(str(error)) or type(error).__name__})

        thread = threading.Thread(target=answer)
        signal.setitimer(signal.ITIMER_PROF, asked["seconds"])  # of processor time, after which this process ends
        thread.start()
        thread.join()
        signal.setitimer(signal.ITIMER_PROF, 0)
        _reply(answers[0])


def _reply(value: object) -> None:
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    work()
