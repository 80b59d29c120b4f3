"""A process that gives llama.cpp the grammars that pass the bounds, and writes under each for how many tokens it went.

Run as ``python -m support.grammar_child FILE.gguf``, with a JSON list of grammars on stdin.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TOKENS = 12
TESTS = Path(__file__).parent.parent


def walk(model, text: str) -> int | None:
    """Return for how many tokens, of those that the grammar allows the longest, it was asked; None if it is refused."""
    import torch

    from cactus_decoding.engines.llama_cpp.gbnf import Grammar
    from cactus_decoding.engines.llama_cpp.grammar import GrammarMask
    from cactus_decoding.engines.llama_cpp.models import library

    try:
        mask = GrammarMask(model, Grammar(text), 0)
        token_ids, row = list[int](), torch.zeros(model.vocabulary_size)
        while len(token_ids) < TOKENS:
            allowed = mask(token_ids, row).isfinite().nonzero().flatten().tolist()
            allowed = [each for each in allowed if each not in model.stop_token_ids]
            if not allowed:
                break
            token_ids.append(max(allowed, key=lambda each: len(library.token_piece(model.vocab, each))))
    except ValueError:
        return None
    return len(token_ids)


def walk_in_child(gguf: Path, grammars: list[str], timeout: float) -> list[int | None]:
    """Return `walk` of each, from a process of its own; raise where that dies or takes longer."""
    code = f"import sys; sys.path[:0] = {[str(TESTS), *sys.path]!r}; from support.grammar_child import main; main()"
    command = [sys.executable, "-c", code, str(gguf)]
    done = subprocess.run(
        command, input=json.dumps(grammars), capture_output=True, text=True, timeout=timeout, check=False
    )
    lines = done.stdout.splitlines()
    said = f"{done.returncode} at {grammars[len(lines)]!r}" if len(lines) < len(grammars) else ""
    assert done.returncode == 0, f"{said}: {done.stderr[-2000:]}"
    return [json.loads(line) for line in lines]


def main() -> None:
    """Walk as told."""
    from cactus_decoding.engines.llama_cpp.models.weights import GgufModel

    model = GgufModel.load("target", Path(sys.argv[1]), vocab_only=True)
    for text in json.load(sys.stdin):
        print(json.dumps(walk(model, text)), flush=True)
