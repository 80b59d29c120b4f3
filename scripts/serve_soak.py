"""A soak of `cactus serve` on GGUF files: four chats at once, clients that leave or err, a kill and a restart.

    python -m scripts.serve_soak target.gguf --draft suffix --minutes 10 --output FILE

A list of seeded requests is first answered one at a time by a server of its own, which gives the expected texts. Then
four clients ask a server with ``--parallel 4`` until the time is over, at the middle of which it is killed and started
again. Checked is that

- every request is answered or refused as it ought to be, those that the kill broke when they are sent again;
- a seeded answer is the text that it was alone, whatever rules, budgets and clients are served beside it: with
  ``--exact`` every one, which float32 files allow; quantised ones round a row by what is read with it;
- memory at the end of each half is what it was behind the first quarter of it, within ``--growth`` MiB.

With ``--tools`` the clients are agents: all have the same system message and so many tools, and every other answer has
to be a call. What they sent, left and lost is in the summary, with the server's memory at its start and in the halves.
``bundled`` in the place of a file is the bundled target with a chat template that knows tools, and a window for them.

The exit code says whether all of that held.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bundled_gguf import write_bundled
from scripts.results import asked, parser, write

CACTUS = [sys.executable, "-c", "from cactus_decoding.cli import main; raise SystemExit(main())", "serve"]
CLIENTS = 4
TEMPLATE = """{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}
{% if loop.first and tools %}Tools, called as <tool_call>{"name": …, "arguments": …}</tool_call>: {{ tools | tojson }}
{% endif %}{% endfor %}Answer:"""
POSITIONS = 8192
QUESTIONS = (
    "Why is the sky blue?", "Write a line about the sea.", "Name three fruits.", "What is 12 times 12?",
    "Tell me about Rome.", "How do bees make honey?",
)  # fmt: skip
RULES: tuple[dict[str, Any], ...] = (
    {},
    {"acceptance_rule": "cactus:delta=1"},
    {"acceptance_rule": "cactus:delta=0.5", "budget": 0.4},
    {"acceptance_rule": "clamped:width=2", "protect": "digits", "acceptance_report": True},
    {"acceptance_rule": "clamped:width=1", "budget": 1.0, "lossless_tokens": 4},
    {"acceptance_rule": "typical", "top_p": 0.9},
    {"temperature": 0},
)
MALFORMED: tuple[dict[str, Any], ...] = (
    {"acceptance_rule": "cactus:delta=-1"}, {"budget": "much"}, {"messages": []}, {"max_tokens": 0}, {"frob": 1},
    {"messages": [{"role": "user", "content": "word " * 20_000}]},
)  # fmt: skip


@dataclass
class Answer:
    """What a request was answered."""

    status: int = 0
    text: str = ""
    finish_reason: str | None = None  # None where the answer has none
    tokens: int = 0  # by the server's count
    error: Any = None


@dataclass
class Server:
    """One that runs."""

    process: subprocess.Popen[str]
    port: int

    def processor_seconds(self) -> float:
        """Return what it has used so far, to a tick of usually 10 ms."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Return its memory that is not in files."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1])

    @contextmanager
    def _asked(self, how: str, path: str, body: Any = None, timeout: float = 600) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        text = None if body is None else json.dumps(body)
        try:
            connection.request(how, path, text, {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                yield response
        finally:
            connection.close()

    def answers(self) -> bool:
        """Say whether it does."""
        try:
            with self._asked("GET", "/health", timeout=10) as response:
                return response.status == 200
        except OSError:
            return False

    def chat(self, body: dict[str, Any], leave_after: int | None = None) -> Answer:
        """Stream a conversation's answer; go away after so many parts."""
        answer = Answer()
        body = {"stream": True, "stream_options": {"include_usage": True}} | body
        with self._asked("POST", "/v1/chat/completions", body) as response:
            answer.status, parts = response.status, 0
            if answer.status != 200:
                answer.error = response.read().decode(errors="replace")
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                for choice in event.get("choices", []):
                    called = choice["delta"].get("tool_calls") or []
                    text = choice["delta"].get("content") or ""
                    text += "".join(call["function"].get("arguments", "") for call in called)
                    answer.text, parts = answer.text + text, parts + bool(text)
                    answer.finish_reason = choice["finish_reason"] or answer.finish_reason
                answer.tokens = (event.get("usage") or {}).get("completion_tokens", answer.tokens)
                answer.error = event.get("error", answer.error)
                if leave_after is not None and parts >= leave_after:
                    break
        return answer


@contextmanager
def running(command: Sequence[str], wait: float = 1800.0) -> Iterator[Server]:
    """Run a server to which a free port is added, and yield it as soon as it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile("w+") as log:
        began = time.perf_counter()
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log, text=True)
        server = Server(process, port)
        try:
            while not server.answers():
                if process.poll() is not None or time.perf_counter() - began > wait:
                    log.seek(0)
                    raise RuntimeError(f"{command[0]} does not answer: {log.read()[-2000:]}")
                time.sleep(0.1)
            yield server
        finally:
            process.terminate()
            process.wait()


def cactus(target: str, draft: str, *options: str) -> list[str]:
    """Return the command of our server."""
    return [*CACTUS, "--engine", "llama-cpp", target, "--draft", draft, *options]


def tools_of_agents(number: int) -> list[dict[str, Any]]:
    """Return so many functions, each with a schema of its own."""
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "string", "maxLength": 12}, {"type": "integer", "minimum": 0, "maximum": 99}, {"type": "boolean"},
        {"enum": ["red", "green", "blue"]}, {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    )  # fmt: skip
    made = []
    for i in range(number):
        properties = {f"value{place}": kinds[(i + place) % len(kinds)] for place in range(1 + i % 3)}
        schema = {"type": "object", "properties": properties, "required": [*properties]}
        made.append({"type": "function", "function": {"name": f"tool_{i}", "parameters": schema}})
    return made


def requests(number: int, tools: int = 0) -> list[dict[str, Any]]:
    """Return seeded conversations of one to three turns, each with its own rule, and perhaps tools as agents send."""
    made, described = [], tools_of_agents(tools)
    for i in range(number):
        turns = [QUESTIONS[(i + turn) % len(QUESTIONS)] for turn in range(1 + i % 3)]
        said = [("system", "You are an agent." if tools else f"You are client {i}.")]
        said += [each for turn in turns[:-1] for each in (("user", turn), ("assistant", "Well."))]
        messages = [{"role": role, "content": text} for role, text in [*said, ("user", turns[-1])]]
        called = {"tools": described, "tool_choice": ("auto", "required")[i % 2], "parallel_tool_calls": False}
        body = {"messages": messages, "seed": i, "max_tokens": (64 if tools else 16) + i % 9, "temperature": 1.0}
        made.append(body | (called if tools else {}) | RULES[i % len(RULES)])
    return made


@dataclass
class Soak:
    """What clients did and found wrong, and seeded requests whose text was not the expected one.

    The kill replaces the server. ``up`` and ``over`` say whether there is one, and whether clients are to stop.
    """

    server: Server
    asked: Sequence[dict[str, Any]]
    expected: Sequence[str]

    def __post_init__(self) -> None:
        self.counts, self.wrong, self.differed = Counter[str](), list[str](), list[int]()
        self.up, self.over, self.lock = threading.Event(), threading.Event(), threading.Lock()

    def send(self, body: dict[str, Any], leave_after: int | None = None) -> Answer:
        """Ask, and ask again where the kill broke the answer."""
        while True:
            self.up.wait()
            server = self.server
            try:
                answer = server.chat(body, leave_after)
            except OSError as error:
                broken = repr(error)
            else:
                ended = leave_after is not None or answer.finish_reason or answer.status != 200
                broken = "" if ended and (answer.status != 200 or not answer.error) else f"{answer}"
            if not broken:
                return answer
            if server.process.poll() is None and self.up.is_set():
                time.sleep(0.5)  # a process that was killed may take a moment to be gone
                if server.process.poll() is None and server is self.server:
                    raise RuntimeError(f"a server that runs broke an answer: {broken}")
            self.note("broken by the kill")

    def note(self, name: str, number: int = 1) -> None:
        """Count."""
        with self.lock:
            self.counts[name] += number

    def client(self, seed: int) -> None:
        """Ask until the time is over."""
        chance = random.Random(seed)
        while not self.over.is_set():
            try:
                self.once(chance)
            except Exception as error:  # a client that ends would say nothing of what it did not ask
                self.note("lost")
                self.wrong.append(f"{type(error).__name__}: {error}")

    def once(self, chance: random.Random) -> None:
        """Ask once, in some way."""
        kind, place = chance.random(), chance.randrange(len(self.asked))
        body = self.asked[place]
        if kind < 0.15:
            malformed = body | chance.choice(MALFORMED)
            answer = self.send(malformed)
            self.note("malformed")
            if answer.status != 400:
                self.wrong.append(f"status {answer.status} for {str(malformed)[-200:]}")
        elif kind < 0.3:
            self.send(body | {"max_tokens": 200}, leave_after=chance.randrange(1, 6))
            self.note("left")
        else:
            answer = self.send(body)
            self.note("answered")
            self.note("tokens", answer.tokens)
            if answer.status != 200 or not 0 <= answer.tokens <= body["max_tokens"]:
                self.wrong.append(f"request {place}: {answer}")
            elif answer.text != self.expected[place]:
                self.differed.append(place)
            if answer.finish_reason == "tool_calls" and body.get("tool_choice") == "required":
                json.loads(answer.text)


def answer_all(server: Server, asked: Sequence[dict[str, Any]]) -> tuple[list[str], dict[str, float]]:
    """Return the texts of four clients' answers, and how fast they came."""
    began, used = time.perf_counter(), server.processor_seconds()
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [*pool.map(server.chat, asked)]
    if failed := [each for each in answers if each.status != 200 or each.finish_reason is None]:
        raise RuntimeError(f"not answered: {failed[0]}")
    taken = {"seconds": time.perf_counter() - began, "processor": server.processor_seconds() - used}
    tokens = sum(each.tokens for each in answers)
    return [each.text for each in answers], {"tokens": tokens} | taken


def half(soak: Soak, server: Server, seconds: float) -> dict[str, int]:
    """Let clients ask a server for a time; return its memory behind a quarter of that, and at the end."""
    soak.server = server
    soak.up.set()
    time.sleep(seconds / 4)
    early = server.resident_bytes()
    time.sleep(seconds * 3 / 4)
    return {"early": early, "late": server.resident_bytes()}


def run(given: Namespace) -> dict[str, Any]:
    """Return what was found."""
    options = ["--threads", str(given.threads), "--num-speculative-tokens", given.proposals]
    bodies = requests(given.requests, given.tools)
    with running(cactus(given.target, given.draft, *options, "--parallel", "1", "--kept-prompts", "0")) as server:
        server.chat(bodies[0])  # the first passes of a process are slow
        expected, alone = answer_all(server, bodies)
    command = cactus(given.target, given.draft, *options, "--parallel", str(CLIENTS))
    with ExitStack() as clients:
        with running(command) as server:
            start = server.resident_bytes()
            server.chat(bodies[0])
            texts, together = answer_all(server, bodies)
            soak = Soak(server, bodies, expected)
            soak.differed += [place for place, text in enumerate(texts) if text != expected[place]]
            pool = clients.enter_context(ThreadPoolExecutor(CLIENTS))
            running_clients = [pool.submit(soak.client, seed) for seed in range(CLIENTS)]
            memory = [half(soak, server, 30 * given.minutes)]
            soak.up.clear()
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        with running(command) as server:
            memory.append(half(soak, server, 30 * given.minutes))
            soak.over.set()
            for each in running_clients:
                each.result(600)
            answers = server.answers()
    grown, counts = [each["late"] - each["early"] for each in memory], soak.counts
    found = {
        "the server does not answer at the end": not answers,
        f"memory grew by {grown} bytes": max(grown) > given.growth * 2**20,
        f"seeded answers that differ from those alone: {soak.differed}": given.exact and soak.differed,
    }
    summary = {
        "requests": counts["answered"] + counts["left"] + counts["malformed"], "cancelled": counts["left"],
        "lost": counts["lost"], "memory_at_start": start,
    }  # fmt: skip
    seeded = counts["answered"] + len(texts)
    return {
        "summary": summary, "counts": dict(counts), "seeded": seeded, "equal": seeded - len(soak.differed),
        "memory": memory, "parallel_1": alone, f"parallel_{CLIENTS}": together,
        "wrong": [*soak.wrong, *(said for said, wrong in found.items() if wrong)],
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser(
        __doc__,
        target=(str, "a GGUF file, with settings as for cactus serve"),
        draft="suffix",
        minutes=10.0,
        requests=(21, "different seeded ones"),
        tools=(0, "of each request, as agents have them"),
        proposals=("4", "per step"),
        threads=1,
        growth=(32, "MiB of memory"),
        exact=(False, "every seeded answer must be what it is alone"),
        output=(None, "result file", {"type": Path}),
    ).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        if given.target == "bundled":
            file = write_bundled("target", Path(folder), "float32", TEMPLATE, POSITIONS)
            given.target = f"{file}:cache=float32,context_size={POSITIONS}"
        found = run(given)
    print(json.dumps(found, indent=1))
    if given.output is not None:
        named = {name: Path(getattr(given, name)).name for name in ("target", "draft")}
        write(given.output, found, asked(given) | named)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
