"""The server as its own process: OpenAI's addresses, who may ask, whose turn it is, and what remains after a kill."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.llama_server import events_of, serving
from support.patience import PATIENCE

from cactus_decoding.engines.llama_cpp.server.server import ChunkWriter
from cactus_decoding.zoo.word_problems import EXAMPLES

QUESTION = EXAMPLES[0].prompt
RULES = ("lossless", "cactus:delta=1.0", "clamped:width=2.0", "typical")
LONG = {"prompt": QUESTION, "logit_bias": {"2": -100.0}, "max_tokens": 420, "temperature": 1.0}
"""An answer that never ends by itself: its end token is out of reach."""


def models(gguf) -> list[str]:
    return [f"{gguf('target', 'q8_0')}:context_size=512", "--draft", str(gguf("worded", "q8_0")), "--threads", "1"]


@pytest.fixture(scope="module")
def server(gguf):
    # with quantised weights llama.cpp's rows depend on how many tokens are read at once, and so on who else is served
    precise = f"{gguf('target')}:context_size=512,cache=float32", "--draft", f"{gguf('worded')}:cache=float32"
    given = (*precise, "--threads", "1", "--parallel", "3")
    given += ("--rule", "cactus:delta=1", "--max-waiting", "200", "--kept-prompts", "0", "--alias", "ours")
    with serving(*given, "--port", "0") as running:
        yield running


@pytest.mark.slow
def test_health_models_and_mistakes(server):
    assert server.ask("GET", "/health") == (200, {"status": "ok"})
    assert [each["id"] for each in server.ask("GET", "/v1/models")[1]["data"]] == ["ours"]
    assert server.ask("GET", "/v1/models/ours")[1]["id"] == "ours"
    assert server.complete(prompt="Hi", model="gpt-4", max_tokens=1)[1]["model"] == "ours"
    for body, said in (
        (b"[1]", "a JSON object"),
        (b'{"prompt": "Hi",}', "is not: Expecting property name enclosed in"),
    ):
        code, answer = server.ask("POST", "/v1/completions", body)
        assert (code, "\n" in answer["error"]["message"]) == (400, False), answer
        assert said in answer["error"]["message"]
    assert server.ask("GET", "/v1/completions")[0] == 405


@pytest.mark.slow
def test_whoever_leaves_frees_the_model(server):
    """The first request would take 420 tokens, and the second waits for it."""
    stream = server.stream(**LONG)
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.complete, prompt=QUESTION, max_tokens=4, seed=0)
        time.sleep(0.2)
        stream.close()
        assert waiting.result(PATIENCE)[0] == 200
    connection = server.connect("POST", "/v1/completions", LONG)  # one that does not stream
    time.sleep(0.2)
    connection.close()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(server.complete, prompt=QUESTION, max_tokens=4, seed=0).result(PATIENCE)[0] == 200


@pytest.mark.slow
def test_a_hundred_requests_at_once_of_which_a_third_is_cancelled(server):
    """None is lost: what is not cancelled is what the same request gives when it is alone. Memory stays as it was."""

    def body(number):
        return {"prompt": QUESTION, "max_tokens": 40, "seed": number % 5, "acceptance_rule": RULES[number % len(RULES)]}

    def text(events):
        return "".join(event["choices"][0]["text"] for event in events)

    def ask(number):
        if number % 3 == 0:  # streamed whole
            return text(server.stream(**body(number)))
        if number % 3 == 1:
            status, answer = server.complete(**body(number))
            return answer["choices"][0]["text"] if status == 200 else (status, answer)
        connection = server.connect("POST", "/v1/completions", body(number) | {"stream": True, "max_tokens": 400})
        first = next(events_of(connection.getresponse()))
        connection.close()  # midway
        return bool(first["choices"])

    def all_at_once():
        with ThreadPoolExecutor(100) as pool:
            return list(pool.map(ask, range(100)))

    alone = {}
    for number in range(100):
        asked = body(number)
        key = asked["seed"], asked["acceptance_rule"]
        if key not in alone:
            alone[key] = server.complete(**asked)[1]["choices"][0]["text"]
    all_at_once()
    before = server.resident_bytes()
    for _ in range(2):
        for number, answer in enumerate(all_at_once()):
            asked = body(number)
            assert answer == (number % 3 == 2 or alone[asked["seed"], asked["acceptance_rule"]])
    assert server.resident_bytes() - before < 16 * 2**20
    assert set(server.counted("cactus_accepted_tokens")) >= set(RULES)
    assert "Traceback" not in server.logged()


@pytest.mark.slow
def test_too_many_waiting_are_told_so_and_a_killed_server_can_be_started_again(gguf, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keys = ("--api-key", "secret", "--api-key", "other")
    with serving(*models(gguf), "--port", "0", "--max-waiting", "1", *keys) as running:
        timing, chosen = running.logged().splitlines()[:2]  # before the address was announced
        assert timing == "Timing passes (a few seconds, once) …"
        assert "proposes what pays by pass times measured now" in chosen
        assert running.complete(prompt="Hi")[0] == 401
        assert running.ask("GET", "/v1/models", key="wrong")[0] == 401
        assert [running.ask("GET", "/v1/models", key=key)[0] for key in ("secret", "other")] == [200, 200]
        assert running.ask("GET", "/health")[0] == 200
        opened, deadline, got = [], time.monotonic() + PATIENCE, (0, None)
        while got[0] != 503:  # on a busy machine an answer may end before another question comes
            assert time.monotonic() < deadline, got
            opened += [running.connect("POST", "/v1/completions", LONG, "secret") for _ in range(2)]
            got = running.ask("POST", "/v1/completions", LONG | {"max_tokens": 1}, "secret")
        assert "the limit" in got[1]["error"]["message"]
        running.process.kill()
        running.process.wait(PATIENCE)
        for connection in opened:
            connection.close()
        port = str(running.port)
    with serving(*models(gguf), "--port", port) as again:
        assert again.complete(prompt=QUESTION, max_tokens=3)[0] == 200
        stream = again.stream(**LONG)
        next(stream)
        again.process.terminate()  # in the midst of an answer
        assert again.process.wait(PATIENCE) in (0, -15, 143)
        stream.close()
        assert "Traceback" not in again.logged()


def test_files_that_cannot_be_served_end_the_command_in_one_line(run, gguf, tmp_path):
    target, draft = str(gguf("target", "q8_0")), str(gguf("worded", "q8_0"))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf("target", "q8_0").read_bytes()[:300_000])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for files, port, said in (
            ((str(cut), "--draft", draft), 0, "cannot load the target"),
            ((target, "--draft", str(cut)), 0, "cannot load the draft"),
            ((str(tmp_path / "none.gguf"), "--draft", draft), 0, "there is no file"),
            ((target, "--draft", draft), taken.getsockname()[1], "cannot listen"),
        ):
            code, out, err = run("serve", "--engine", "llama-cpp", *files, "--port", str(port))
            assert (code, out, err.count("\n")) == (2, "", 1), err
            assert said in err


def test_what_is_refused_before_anything_is_loaded(run, gguf, monkeypatch):
    monkeypatch.delenv("CACTUS_API_KEY", raising=False)
    target = str(gguf("target", "q8_0"))
    for arguments, said in (
        (("--draft", "ngram"), "give TARGET.gguf"),
        ((target, "--draft", "ngram", "--tensor-parallel-size", "2"), "--tensor-parallel-size is for vLLM"),
        ((target, "--draft", "ngram", "--host", "0.0.0.0"), "give --api-key"),
        ((target, "--draft", "ngram", "--rule", "cactis", "--port", "0"), "did you mean 'cactus'"),
        ((target, "--draft", "suffix:earlier=99", "--port", "0"), "earlier shows users each other's answers"),
        ((target, "--draft", "ngram", "--api-key", "a", "--api-key", "schlüssel"), "--api-key must be printable ASCII"),
    ):
        code, out, err = run("serve", "--engine", "llama-cpp", *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert err.count("\n") == 1
    for arguments, said in (
        ((target, "--draft", "ngram"), "give --engine llama-cpp"),
        (("--api-key", " a"), "--api-key must be printable ASCII"),
    ):
        code, _, err = run("serve", *arguments, "--engine", "vllm")
        assert (code, said in err) == (2, True)
    monkeypatch.setenv("CACTUS_API_KEY", "fine, schlüssel")
    code, _, err = run("serve", target, "--draft", "ngram")
    assert (code, err.count("\n"), "schl" in err) == (2, 1, False)
    assert "CACTUS_API_KEY must be printable ASCII" in err


def test_a_file_alone_says_what_serves_it_and_what_drafts(run, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no model")
    code, out, err = run("serve", str(broken), "--port", "0")
    assert (code, out) == (2, "")
    looked_up, *_, mistake = err.splitlines()
    assert "proposals are looked up in the text (suffix)" in looked_up
    assert "cannot load the target" in mistake
    assert mistake.endswith(": the file is damaged or incomplete; download it again")


def test_json_of_events_is_one_line():
    event, end = ChunkWriter().parts([{"text": "a\nb"}])
    assert end == b"data: [DONE]\n\n"
    assert event.count(b"\n") == 2
    assert json.loads(event.removeprefix(b"data: ")) == {"text": "a\nb"}
