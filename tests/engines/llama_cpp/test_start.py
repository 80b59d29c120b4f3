"""What a server answers before it is ready, and how it ends meanwhile."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest
from support.llama_server import LlamaServerProcess
from support.patience import PATIENCE

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf, usual_threads

HELD_BACK = """
import sys
from cactus_decoding.cli import main
from cactus_decoding.engines.llama_cpp.server.server import LlamaServer

get_ready = LlamaServer.get_ready

def held(server, failed):
    if sys.stdin.readline().startswith("go"):
        get_ready(server, failed)
    else:
        server._ready.set_exception(MemoryError("there is no room"))
        failed()

LlamaServer.get_ready = held
raise SystemExit(main())
"""
"""The command, which gets ready only when it is told to."""
ASKED = {"prompt": "Tom has 4 pens.", "max_tokens": 2, "temperature": 0}


@pytest.fixture
def held(gguf):
    files = (f"{gguf('target', 'q8_0')}:context_size=256", "--draft", str(gguf("worded", "q8_0")))
    given = ("serve", *files, "--num-speculative-tokens", "2", "--parallel", "2", "--port", "0")
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HELD_BACK, *given]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        announced = process.stdout.readline()
        assert announced, process.stderr.read()
        try:
            yield LlamaServerProcess(process, int(announced.split("/v1")[0].rpartition(":")[2]), process.stderr)
        finally:
            process.kill()


def test_what_needs_no_token_is_answered_before_the_server_is_ready(held):
    assert held.ask("GET", "/health") == (200, {"status": "ok"})
    assert held.ask("GET", "/v1/models")[0] == 200
    status, answer = held.complete(**ASKED, acceptance_rule="cactis")
    assert (status, "did you mean 'cactus'" in answer["error"]["message"]) == (400, True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(held.complete, **ASKED)
        left = held.connect("POST", "/v1/completions", ASKED)  # and goes away before anything is there
        left.close()
        sleep(0.1)
        assert not waiting.done()
        held.process.stdin.write("go\n")
        held.process.stdin.flush()
        assert waiting.result(PATIENCE)[0] == 200
    assert held.complete(**ASKED)[0] == 200


def test_a_server_that_cannot_get_ready_tells_those_who_wait_and_ends_in_one_line(held):
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(held.complete, **ASKED)
        sleep(0.3)
        held.process.stdin.write("fail\n")
        held.process.stdin.flush()
        status, answer = waiting.result(PATIENCE)
    assert (status, "could not get ready" in answer["error"]["message"]) == (503, True)
    assert held.process.wait(PATIENCE) == 2
    assert held.process.stderr.read() == "cactus: the server cannot answer: MemoryError: there is no room\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_ends_a_server_that_is_not_ready(held, number, code):
    sleep(0.4)  # it has begun to import
    held.process.send_signal(number)
    assert held.process.wait(PATIENCE) == code
    assert held.process.stderr.read() == ("cactus: interrupted\n" if number == signal.SIGINT else "")


def test_threads_are_those_of_the_file_of_the_command_or_of_the_environment(monkeypatch):
    def threads(name, count):
        return parse_gguf(name).with_threads(count).settings.threads

    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert [threads("a.gguf:threads=5", 2), threads("a.gguf", 2), threads("a.gguf", None)] == [5, 2, 3]
    assert threads("a.gguf:context_size=8,threads=5", None) == 5
    for given in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert usual_threads() >= 1
