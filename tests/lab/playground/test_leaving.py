"""Who leaves, or stays and reads nothing, keeps nobody waiting."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from support.held_passes import held_passes
from support.in_thread import begun, reading_nothing, wait_until
from support.playground_server import asked, running, tokens

RUNS = "POST", "/api/runs"


@pytest.fixture(scope="module")
def of_files(gguf):
    """Names of a pair that llama.cpp reads."""
    return f"{gguf('target')}:cache=float32,context_size=512,threads=1", f"{gguf('worded')}:cache=float32"


def has_left(server):
    """Whether the server knows that the only visitor so far has left."""
    return server.playground.runs._caches.twins[0].target._cancelled.is_set()


def test_who_leaves_while_a_prompt_is_read_ends_it_before_the_next_pass(of_files):
    other = asked("lossless", max_new_tokens=4, num_speculative_tokens=2, chat=False)
    short = other | {"prompt": "Sam has 5 nuts and 3 apples, and Tim has 12. How many has Tim?"}
    with running(models=False, pair=of_files) as fresh:
        expected = tokens(fresh.events(other))
    with running(models=False, pair=of_files) as server:
        tokenizer = server.playground.pairs.get(None, None).tokenizer
        first, second = (tokenizer(body["prompt"]).input_ids[:16] for body in (short, other))
        with held_passes() as held, ThreadPoolExecutor(1) as threads:
            with closing(begun(server.port, *RUNS, short)):
                wait_until(lambda: held.begun)
            wait_until(lambda: has_left(server))
            following = threads.submit(server.events, other)
            held.gate.release(1)
            wait_until(lambda: len(held.begun) == 2)
            assert held.begun == [first, second]
            held.gate.release(1_000)
            assert tokens(following.result(60)) == expected


def test_who_leaves_during_a_step_of_transformers_ends_it_before_the_next_pass():
    with running() as server:
        pair, gate, passes = server.playground.pairs.get(None, None), threading.Semaphore(0), []
        hooks = [
            each.model.register_forward_pre_hook(lambda *_, name=name: passes.append(name) or (gate.acquire() and None))
            for name, each in (("target", pair.target), ("draft", pair.drafter.model_cache))
        ]
        with closing(begun(server.port, *RUNS, asked("lossless", max_new_tokens=8))):
            wait_until(lambda: passes)
        wait_until(lambda: has_left(server))
        with ThreadPoolExecutor(1) as threads:
            following = threads.submit(server.events, asked("lossless", max_new_tokens=1))
            gate.release(1_000)
            assert following.result(60)[-1] == {"event": "finished"}
        for hook in hooks:
            hook.remove()
    assert passes == ["draft", "target"]  # the second one's, which needs no proposals, is the target's


def test_who_reads_nothing_keeps_no_seat():
    with running(sent_bytes=4096) as server:
        body = asked("cactus:delta=1.0", "lossless", max_new_tokens=200)
        with closing(reading_nothing(server.port, *RUNS, body)) as staying:
            events = server.events(body)
            wait_until(lambda: not server.playground.queue._places)
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += staying.recv(2**16)
        assert events[-1] == {"event": "finished"}
        assert b'"finished"' in received
        assert len(received) > 2**16  # what was kept for it meanwhile
