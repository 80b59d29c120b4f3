"""Seconds to the first token by turn of a conversation: `llama_cpp.Llama`, `CactusLlama` and servers, turn about.

Run it with the files of a pair: ``python first_token.py target.gguf --draft draft.gguf --llama-server PATH``. Neither
`llama_cpp.Llama` nor llama.cpp's server has a draft, which is when their first token comes soonest.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from llama_cpp import Llama
from pairing import benchmark
from servers import Server, cactus, llama_server, running

from cactus_decoding.engines.llama_cpp import CactusLlama

Message = dict[str, str]
Ask = Callable[[list[Message]], tuple[float, float]]
"""Asks for an answer to a conversation of which the first token is all that counts; returns its seconds, on the wall
and of the processor."""
ANSWER_TOKENS = 2
SENTENCE = "the count of red apples in each of our baskets was written down by Anna before noon and nobody read it"


def text_of(words: int, seed: int) -> str:
    """Return words that do not repeat themselves in the same order."""
    known = SENTENCE.split()
    return " ".join(known[(seed + i * (i + seed)) % len(known)] for i in range(words))


def conversation(words: int, turns: int) -> Iterator[list[Message]]:
    """Yield what is asked in each turn: all that was said before, answers too, and a question behind it."""
    said: list[Message] = []
    for turn in range(turns):
        said.append({"role": "user", "content": text_of(words if turn == 0 else 12, words + turn)})
        yield list(said)
        said.append({"role": "assistant", "content": text_of(12, 100 + turn)})


def in_process(llama) -> Ask:
    """Return what asks an object of llama-cpp-python's interface."""

    def ask(messages: list[Message]) -> tuple[float, float]:
        began, used = time.perf_counter(), time.process_time()
        chunks = llama.create_chat_completion(messages, stream=True, max_tokens=ANSWER_TOKENS, temperature=0)
        said = (chunk["choices"][0] for chunk in chunks)
        next(choice for choice in said if choice["delta"].get("content") or choice["finish_reason"])
        first = time.perf_counter() - began, time.process_time() - used
        list(chunks)
        return first

    return ask


def served(server: Server) -> Ask:
    """Return what asks a server."""

    def ask(messages: list[Message]) -> tuple[float, float]:
        answer = server.chat({"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0})
        return answer.first, answer.first_processor

    return ask


def measure(given: Namespace) -> Iterator[dict[str, Any]]:
    size = max(given.tokens) + 400
    shape = {"n_ctx": size, "n_threads": given.threads, "n_threads_batch": given.threads, "verbose": False}
    kept = {} if given.kept_prompts is None else {"kept_prompts": given.kept_prompts}
    proposals = given.proposals if given.proposals == "auto" else int(given.proposals)
    ours = CactusLlama(given.target, draft=str(given.draft), num_speculative_tokens=proposals, **kept, **shape)
    options = ["--threads", str(given.threads), "--num-speculative-tokens", given.proposals]
    options += [f"--kept-prompts={each}" for each in kept.values()]
    rows = []
    with ExitStack() as servers:
        command = cactus(f"{given.target}:context_size={size}", str(given.draft), *options)
        asked = {
            "llama_cpp.Llama": in_process(Llama(str(given.target), **shape)),
            "CactusLlama": in_process(ours),
            "cactus serve": served(servers.enter_context(running(command))),
        }
        if given.llama_server is not None:
            command = llama_server(given.llama_server, given.target, None, given.threads, size)
            asked["llama.cpp's server"] = served(servers.enter_context(running(command)))
        for each in asked.values():
            each([{"role": "user", "content": "Hello"}])  # the first passes of a process are slow
        print(f"{'tokens':>7} {'turn':>4} " + " ".join(f"{name:>18}" for name in asked))
        for count in given.tokens:
            for turn, messages in enumerate(conversation(round(count / 1.05), given.turns), 1):
                taken = {name: ask(messages) for name, ask in asked.items()}
                seconds, processor = ({name: each[clock] for name, each in taken.items()} for clock in (0, 1))
                rows.append({"tokens": count, "turn": turn, "seconds": seconds, "processor": processor})
                print(f"{count:>7} {turn:>4} " + " ".join(f"{each:18.2f}" for each in processor.values()), flush=True)
                yield {"rows": rows}


if __name__ == "__main__":
    benchmark(
        __doc__, "first_token", measure, target=Path, draft=Path("ngram"),
        tokens=([400, 800], "of the first message, about"),
        turns=3,
        threads=1,
        proposals=("4", "per step, or auto"),
        llama_server=(None, "llama.cpp's server, to be compared with", {"type": Path}),
        kept_prompts=(None, "of CactusLlama and the server; their own default", {"type": int}),
    )  # fmt: skip
