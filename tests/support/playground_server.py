"""A real playground server in a thread of this process, whose target can be held between two forward passes."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cactus_decoding.engines.openai.serving import LOOPBACK_NAMES
from cactus_decoding.lab.playground.form import FormLimits
from cactus_decoding.lab.playground.server import Playground
from support.in_thread import served
from support.patience import PATIENCE

QUESTION = (
    "Anna has 43 stamps. She gives away 17 stamps. She shares the rest equally among 2 friends. "
    "How many stamps does each friend get?"
)


@dataclass
class Running:
    playground: Playground
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = ({} if body is None else {"Content-Type": "application/json"}) | (headers or {})
        connection.request(method, path, data, given)
        response = connection.getresponse()
        try:
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def post(self, path: str, body: object):
        status, _, answer = self.ask("POST", path, body)
        return status, json.loads(answer)

    def events(self, request: dict) -> list[dict]:
        """Generate, and return all events."""
        status, _, answer = self.ask("POST", "/api/runs", request)
        assert status == 200, answer
        return [json.loads(line) for line in answer.splitlines()]

    @contextmanager
    def following(self, request: dict) -> Iterator[Iterator[dict]]:
        """Generate, and yield the events as they come; leaving closes the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("POST", "/api/runs", json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        try:
            yield (json.loads(line) for line in iter(response.readline, b""))
        finally:
            response.close()
            connection.close()

    @contextmanager
    def held(self) -> Iterator[threading.Semaphore]:
        """Let the target run once for each release of the semaphore, and freely again afterwards."""
        gate, model = threading.Semaphore(0), self.playground.pairs.get(None, None).target.model
        hook = model.register_forward_pre_hook(lambda *_: gate.acquire() and None)
        try:
            yield gate
        finally:
            hook.remove()
            gate.release(10_000)


@contextmanager
def running(
    limits: FormLimits | None = None,
    *,
    models: bool = True,
    hosts=LOOPBACK_NAMES,
    pair: tuple[str | None, str | None] = (None, None),
    sent_bytes: int | None = None,
) -> Iterator[Running]:
    """Serve on a free port until the block ends."""
    playground = Playground(limits or FormLimits(), models=models, pair=pair)
    playground.pairs.get(None, None)
    with served(playground.application(hosts), sent_bytes=sent_bytes) as port:
        yield Running(playground, port)


def asked(*rules: str, **more: object) -> dict:
    return {"prompt": QUESTION, "rules": list(rules or ["cactus:delta=0.5"]), "seed": 0} | more


def tokens(events: list[dict], session: int = 0) -> list[int]:
    steps = [event for event in events if event["event"] == "step" and event["session"] == session]
    return [one["token_id"] for step in steps for one in step["positions"] if one["emitted"]]
