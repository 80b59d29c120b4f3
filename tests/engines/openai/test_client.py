"""How servers are asked: what is read of a stream, what is asked again, and what a failure is called."""

import json
import threading
from functools import partial

import httpx2
import pytest
from support.patience import PATIENCE
from support.scripted_server import events, scripted
from support.tables import all_of

from cactus_decoding.engines.openai import client as module
from cactus_decoding.engines.openai.client import RefusedError, ServerClient, ServerError, StoppedError

BODY = {"prompt": "How?"}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(module, "MAX_PAUSE", 0.01)


def test_a_stream_becomes_a_text_with_what_the_server_told_beside_it():
    with scripted(lambda path, body: events("a b", timings={"predicted_n": 2})) as address:
        for spelled in (address, address + "/", address + "/v1", address + "/v1/"):
            client = ServerClient(spelled)
            assert client.models() == ["tiny"]
            reply = client.ask("/completions", BODY)
            assert (reply.text, reply.finish_reason, reply.retries) == ("ab", "stop", 0)
            assert reply.extra == {"usage": {"completion_tokens": 2}, "timings": {"predicted_n": 2}}
            assert 0 < reply.first_seconds <= reply.seconds
            client.close()


def test_the_first_token_of_a_chat_may_be_a_thought():
    def script(path, body):
        assert path == "/v1/chat/completions"
        deltas = ({"role": "assistant", "content": ""}, {"reasoning_content": "Hm"}, {"content": "So."})
        chunks = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
        return [*chunks, {"choices": [{"delta": {}, "finish_reason": "length"}]}]

    with scripted(script) as address:
        reply = ServerClient(address).ask("/chat/completions", {"messages": []})
        assert (reply.text, reply.finish_reason) == ("So.", "length")


FAULTS = (
    (503, {"error": {"message": "too busy"}}),
    (500, "<html>oops</html>"),
    (429, {"detail": "slow down"}),
    [{"choices": [{"text": "a", "finish_reason": None}]}, None],
    [{"choices": [{"text": "a", "finish_reason": None}]}],
    [{"choices": [{"text": "a", "finish_reason": "abort"}]}],
    [{"error": {"message": "out of memory", "code": 500}}],
    ["{"],
    [{"choices": [{}]}],
    [[]],
    (200, {"choices": [{"text": "no stream"}]}),
)


@all_of("fault", FAULTS)
def test_what_failed_is_asked_again_and_counted_once(fault):
    asked = []

    def script(path, body):
        asked.append(body)
        return fault if len(asked) < 3 else events("well")

    with scripted(script) as address:
        reply = ServerClient(address, retries=2).ask("/completions", BODY)
        assert (reply.text, reply.retries, len(asked)) == ("well", 2, 3)
        asked.clear()
        with pytest.raises(ServerError, match=r"also when asked 1 more times"):
            ServerClient(address, retries=1).ask("/completions", BODY)


@all_of(
    "fault, said",
    [
        ((400, {"error": {"message": "delta must\nbe in (0, inf]"}}), r"delta must be in \(0, inf\] \(status 400\)"),
        ((404, "<html>nothing here</html>"), "nothing here"),
        ((401, {"error": {"message": "no key"}}), "no key"),
        ([{"error": {"message": "no such token", "type": "invalid_request_error"}}], "no such token"),
        ([{"error": {"message": "too long", "code": 400}}], "too long"),
    ],
)
def test_what_is_refused_is_not_asked_again(fault, said):
    asked = []

    def script(path, body):
        asked.append(body)
        return fault

    with scripted(script) as address, pytest.raises(RefusedError, match=said):
        ServerClient(address, retries=5).ask("/completions", BODY)
    assert len(asked) == 1


def test_an_answer_that_takes_too_long_is_a_failure():
    given_up = threading.Event()

    def script(path, body):
        given_up.wait(PATIENCE)
        return events("late")

    with scripted(script) as address:
        with pytest.raises(ServerError, match=r"took more than 0\.5 s to answer$"):
            ServerClient(address, timeout=0.5, retries=0).ask("/completions", BODY)
        given_up.set()


PING = b": ping\n\n"


def sent(*choices: dict) -> bytes:
    return b"".join(f"data: {json.dumps({'choices': [each]})}\n\n".encode() for each in choices)


WORD, END = {"text": "a", "finish_reason": None}, {"text": "", "finish_reason": "stop"}


class Clock:
    """Time that passes while a stream is waited for, and never else."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Parts(httpx2.SyncByteStream):
    """The parts of an answer, each after some seconds."""

    def __init__(self, clock: Clock, parts: list[tuple[float, bytes]]) -> None:
        self._clock, self._parts = clock, parts

    def __iter__(self):
        for seconds, part in self._parts:
            self._clock.now += seconds
            yield part


def ask_in(monkeypatch, parts: list[tuple[float, bytes]], status: int = 200) -> str:
    """Return the text of an answer that comes in parts, asked for with a limit of 10 seconds."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    headers = {"content-type": "text/event-stream"}
    transport = httpx2.MockTransport(
        lambda request: httpx2.Response(status, headers=headers, stream=Parts(clock, parts))
    )
    monkeypatch.setattr(module.httpx2, "Client", partial(httpx2.Client, transport=transport))
    return ServerClient("http://localhost:8000", timeout=10.0, retries=0).ask("/completions", BODY).text


THOUGHTLESS = {"text": "", "finish_reason": None}
SILENT = (
    [(4, PING)] * 3,
    [(4, b":")] * 3,  # a part need not be a line
    [(4, sent(THOUGHTLESS))] * 3,
    [(4, sent(WORD)), *[(4, PING)] * 3],
    [(4, sent(END)), *[(4, PING)] * 3],  # all but the end of the stream
)


@all_of("silence", SILENT)
def test_an_answer_that_does_not_go_on_fails_whatever_else_is_sent(monkeypatch, silence):
    parts = [*silence, (0, b"\n\n"), (0, sent(WORD, END))]
    with monkeypatch.context() as patch, pytest.raises(ServerError, match=r"took more than 10 s to answer$"):
        ask_in(patch, parts)
    with monkeypatch.context() as patch:  # without a look at each part all of them are waited for
        patch.setattr(module, "_Watched", lambda stream, look: stream)
        assert ask_in(patch, parts).endswith("a")


def test_a_refusal_that_is_dripped_fails_too(monkeypatch):
    with pytest.raises(ServerError, match=r"took more than 10 s to answer$"):
        ask_in(monkeypatch, [(4, b" ")] * 4, status=503)


def test_a_slow_answer_that_goes_on_is_kept(monkeypatch):
    with monkeypatch.context() as patch:
        assert ask_in(patch, [*[(4, PING), (4, sent(WORD))] * 5, (4, sent(END))]) == "aaaaa"
    with monkeypatch.context() as patch:  # what is there is not thrown away for being late
        assert ask_in(patch, [(4, PING), (4, PING), (4, PING + sent(WORD)), (9, sent(END))]) == "a"


def test_a_timeout_is_at_most_a_day():
    ServerClient("http://localhost:8000", timeout=86400).close()
    for timeout in (float("inf"), 1e12, float("nan"), 0.0, -1.0):
        with pytest.raises(ValueError, match=r"timeout must be in \(0, 86400\], but is "):
            ServerClient("http://localhost:8000", timeout=timeout)


def test_places_without_a_server_are_named(monkeypatch):
    with pytest.raises(ServerError, match=r"http://127\.0\.0\.1:9 cannot be reached"):
        ServerClient("http://127.0.0.1:9").models()
    with pytest.raises(ServerError, match=r"http://no-such-host\.invalid cannot be reached"):
        ServerClient("http://no-such-host.invalid").models()
    for models in ("<html>", {"models": []}, [1], {"data": [{"name": "a"}]}):
        with scripted(lambda path, body: events(""), models) as address, pytest.raises(ServerError, match="no models"):
            ServerClient(address).models()
    for address in ("localhost:8000", "ftp://localhost", "http://", "http://[::1"):
        with pytest.raises(ValueError, match="must be such as http://localhost:8000"):
            ServerClient(address)
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        ServerClient("http://key@localhost:8000")
    monkeypatch.setenv("OPENAI_API_KEY", "schlüssel")
    with pytest.raises(ValueError, match="OPENAI_API_KEY must be printable ASCII"):
        ServerClient("http://localhost:8000")


def test_closing_ends_those_who_wait(monkeypatch):
    monkeypatch.setattr(module, "MAX_PAUSE", 1000.0)
    with scripted(lambda path, body: (503, {})) as address:
        client = ServerClient(address, retries=30)
        threading.Timer(0.3, client.close).start()
        with pytest.raises(StoppedError):
            client.ask("/completions", BODY)
