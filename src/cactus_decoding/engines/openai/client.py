"""Asks OpenAI-compatible servers: answers are streamed, and asked for again where a server failed."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

from cactus_decoding.core.checks import check_key, check_number

MAX_PAUSE = 30.0  # the longest time between two tries, in seconds
MAX_TIMEOUT = 86400.0  # a day, in seconds: sockets take no infinite times
_CONNECT_SECONDS = 10.0
_TRY_AGAIN = (408, 409, 425, 429)
_CUT = ("abort", "error")  # reasons to finish of answers that a server did not finish


class RefusedError(ValueError):
    """A server refuses a request, and would refuse it again."""


class ServerError(ValueError):
    """A server did not answer, however often it was asked."""


class StoppedError(Exception):
    """The client was closed."""


class _FailedError(Exception):
    """A server failed at a request that it may answer the next time."""

    def __init__(self, said: str, pause: float = 0.0) -> None:
        super().__init__(said)
        self.pause = pause


@dataclass(frozen=True)
class Reply:
    text: str  # all of it
    finish_reason: str  # of the choice
    first_seconds: float
    seconds: float
    # what the server told beside it: ``usage``, ``metrics`` and ``timings``
    extra: Mapping[str, Any] = field(default_factory=dict)
    retries: int = 0  # how often the server failed before


class _Watched(httpx2.SyncByteStream):
    """A stream that is looked at after each part, when all that the part held has been read."""

    def __init__(self, stream: httpx2.SyncByteStream, look: Callable[[], None]) -> None:
        self._stream, self._look = stream, look

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            yield part
            self._look()

    def close(self) -> None:
        self._stream.close()


class ServerClient:
    """Asks one server, from as many threads as there are.

    A server that cannot be reached, fails or is too busy is asked again, after pauses that double up to `MAX_PAUSE`
    seconds. So is one that goes on with an answer by nothing for ``timeout`` seconds, up to `MAX_TIMEOUT`, whatever
    else it sends: comments and events without text do not count. A key is taken from OPENAI_API_KEY.
    """

    def __init__(self, address: str, *, timeout: float = 600.0, retries: int = 10) -> None:
        self.address = address.rstrip("/").removesuffix("/v1")
        try:
            url = httpx2.URL(self.address)
        except httpx2.InvalidURL as error:
            raise ValueError(
                f"a server's address must be such as http://localhost:8000, but is {address!r}: {error}"
            ) from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"a server's address must be such as http://localhost:8000, but is {address!r}")
        if url.userinfo:
            raise ValueError("a server's address may hold no key: give it as OPENAI_API_KEY in the environment")
        key = os.environ.get("OPENAI_API_KEY")
        check_key("OPENAI_API_KEY", key or "")
        timeout = check_number("timeout", timeout, 0.0, MAX_TIMEOUT, low_open=True)
        self._timeout, self._retries, self._stopped = timeout, retries, threading.Event()
        self._client = httpx2.Client(
            base_url=f"{self.address}/v1",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(timeout, connect=min(_CONNECT_SECONDS, timeout)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )

    def close(self) -> None:
        """Let whoever waits for an answer or a pause end with `StoppedError`."""
        self._stopped.set()
        self._client.close()

    def models(self) -> list[str]:
        try:
            response = self._client.get("/models")
            if response.status_code != 200:
                raise _FailedError(f"answers /v1/models with {response.status_code}: {_said(response)}")
            return [str(each["id"]) for each in response.json()["data"]]
        except (_FailedError, httpx2.HTTPError) as error:
            raise ServerError(f"{self.address} {self._failure(error)}") from None
        except (LookupError, TypeError, ValueError):
            raise ServerError(
                f"{self.address} lists no models at /v1/models: is it an OpenAI-compatible server?"
            ) from None

    def ask(self, path: str, body: Mapping[str, Any], *, retries: int | None = None) -> Reply:
        tries = self._retries if retries is None else retries
        for failed in range(tries + 1):
            try:
                return replace(self._stream(path, {**body, "stream": True}), retries=failed)
            except (_FailedError, httpx2.HTTPError, RuntimeError) as error:
                if self._stopped.is_set():
                    raise StoppedError from None
                if isinstance(error, RuntimeError):
                    raise
                said = self._failure(error)
                if failed < tries:
                    pause = min(2.0 ** min(failed, 30) / 2, MAX_PAUSE) * random.uniform(0.75, 1.25)
                    self._stopped.wait(max(pause, getattr(error, "pause", 0.0)))
        again = f", also when asked {tries} more times" if tries else ""
        raise ServerError(f"{self.address} {said}{again}")

    def _stream(self, path: str, body: Mapping[str, Any]) -> Reply:
        began, first, parts, reason = time.perf_counter(), None, list[str](), None
        extra: dict[str, Any] = {}
        went_on = began

        def look() -> None:
            if self._stopped.is_set():
                raise StoppedError
            if time.perf_counter() - went_on > self._timeout:
                raise httpx2.ReadTimeout("")

        with self._client.sse(path, method="POST", json=body) as source:
            stream = source.response.stream
            assert isinstance(stream, httpx2.SyncByteStream)  # that of a client without async
            source.response.stream = _Watched(stream, look)
            if source.response.status_code != 200:
                raise _failure_of(source.response)
            for event in source:
                now = time.perf_counter()
                if event.data == "[DONE]":
                    break
                chunk = _chunk(event.data)
                extra |= {name: chunk[name] for name in ("usage", "metrics", "timings") if chunk.get(name)}
                for choice in chunk["choices"][:1]:
                    text, thought = _texts(choice)
                    parts.append(text)
                    reason = choice.get("finish_reason") or reason
                    if text or thought or choice.get("finish_reason"):
                        went_on = now
                        first = now - began if first is None else first
        if reason is None or reason in _CUT:
            raise _FailedError("left an answer unfinished")
        seconds = time.perf_counter() - began
        return Reply("".join(parts), reason, first if first is not None else seconds, seconds, extra)

    def _failure(self, error: Exception) -> str:
        if isinstance(error, httpx2.ConnectTimeout):
            return f"took more than {min(_CONNECT_SECONDS, self._timeout):g} s to connect"
        if isinstance(error, httpx2.TimeoutException):
            return f"took more than {self._timeout:g} s to answer"
        if isinstance(error, httpx2.HTTPError):
            return f"cannot be reached: {error or type(error).__name__}"
        return str(error)


def _chunk(data: str) -> dict[str, Any]:
    """Return an event of a stream; raise for an error in it, and for what is not OpenAI's."""
    try:
        chunk = json.loads(data)
        if "error" not in chunk:
            for choice in chunk["choices"]:
                _texts(choice)
            return dict(chunk)
    except (AttributeError, LookupError, TypeError, ValueError):
        raise _FailedError(f"gave an answer that is not OpenAI's: {data[:200]!r}") from None
    raise _failure_in(chunk["error"])


def _texts(choice: Mapping[str, Any]) -> tuple[str, str]:
    if "delta" not in choice:
        return choice["text"], ""
    delta = choice["delta"]
    return delta.get("content") or "", delta.get("reasoning_content") or delta.get("reasoning") or ""


def _failure_of(response: httpx2.Response) -> Exception:
    response.read()
    status, after = response.status_code, response.headers.get("retry-after", "")
    if status >= 500 or status in _TRY_AGAIN:
        return _FailedError(f"answers {status}: {_said(response)}", float(after) if after.isdecimal() else 0.0)
    return RefusedError(f"{_said(response)} (status {status})")


def _failure_in(error: Any) -> Exception:
    said = _message(error)
    code = error.get("code") if isinstance(error, dict) else None
    refused = isinstance(error, dict) and error.get("type") == "invalid_request_error"
    if refused or (isinstance(code, int) and 400 <= code < 500 and code not in _TRY_AGAIN):
        return RefusedError(said)
    return _FailedError(f"failed in the middle of an answer: {said}")


def _said(response: httpx2.Response) -> str:
    try:
        given = response.json()
        return _message(given.get("error", given))
    except (AttributeError, ValueError):
        return _message(response.text)


def _message(given: Any) -> str:
    if isinstance(given, dict):
        given = given.get("message") or given.get("detail") or given
    text = given if isinstance(given, str) else json.dumps(given)
    return " ".join(text.split())[:300] or "nothing"
