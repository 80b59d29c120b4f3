"""Who leaves, or stays and reads nothing, keeps nobody waiting."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from support.held_passes import held_passes
from support.in_thread import asked, begun, reading_nothing, wait_until
from support.llama_server import serving_here

from cactus_decoding.zoo.word_problems import EXAMPLES

COMPLETIONS = "POST", "/v1/completions"
SHORT = {"prompt": EXAMPLES[1].prompt, "max_tokens": 4, "seed": 1}
MANY = {"prompt": EXAMPLES[0].prompt, "max_tokens": 150, "seed": 1, "logprobs": 20, "logit_bias": {"2": -100.0}}
"""An answer that never ends by itself, and of which the system holds only a part for its reader."""
MORE = 2**16


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_while_a_prompt_is_read_ends_it_before_the_next_pass(gguf, parallel, stream):
    with serving_here(gguf("target"), gguf("worded"), parallel) as (server, pool, port):
        status, expected = asked(port, *COMPLETIONS, SHORT)
        assert status == 200
        ids = [pool.pairs[0].tokenizer(EXAMPLES[i].prompt).input_ids for i in range(2)]
        for pair in pool.pairs:
            pair.forget()
        with held_passes() as held, ThreadPoolExecutor(1) as pool_of_threads:
            leaving = begun(port, *COMPLETIONS, SHORT | {"prompt": EXAMPLES[0].prompt, "stream": stream})
            wait_until(lambda: held.begun)
            leaving.close()
            wait_until(lambda: all(event.is_set() for event in server._running))
            held.gate.release(1)
            following = pool_of_threads.submit(asked, port, *COMPLETIONS, SHORT)
            wait_until(lambda: len(held.begun) == 2)
            assert held.begun == [ids[0][:16], ids[1][:16]]
            held.gate.release(1_000)
            status, text = following.result(60)
        assert (status, text.partition('"choices"')[2]) == (200, expected.partition('"choices"')[2])


@pytest.mark.parametrize("parallel", [1, 2])
def test_who_reads_nothing_keeps_no_seat_and_no_pair(gguf, parallel):
    with (
        serving_here(gguf("target"), gguf("worded"), parallel, sent_bytes=4096) as (server, pool, port),
        ExitStack() as staying,
    ):
        given = [MANY | {"stream": True}, MANY][:parallel]
        stay = [staying.enter_context(closing(reading_nothing(port, *COMPLETIONS, body))) for body in given]
        status, text = asked(port, *COMPLETIONS, MANY)
        wait_until(lambda: not server.queue._places)
        assert not any(map(pool._is_held, pool.pairs))
        assert (status, len(text) > MORE) == (200, True)
        for connection in stay:
            received = b""
            while not received.endswith(b"0\r\n\r\n"):
                received += connection.recv(2**16)
            assert len(received) > MORE  # what was kept for it meanwhile
