"""A soak of vLLM's server: every rule, budget and protection under way at once, with clients that go away.

    .venv-vllm/bin/python -m scripts.vllm_soak --seconds 1200 --concurrency 16

Clients ask until the time is over; some take streams, and of some rules a part leaves before the answer is there. Then:

- the server's counters of the rules whose clients all stay equal what their responses reported, to the token;
- the memory of each of its processes in the last quarter of the time is within 2 % of that in the second quarter;
- it still answers, and refuses what is malformed;
- after a worker is killed, every request ends, and so does `cactus serve`, with a code other than 0 and a reason.

The exit code says whether all of that held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import psutil

from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from studies.serving.goodput import MODEL, Way, serving

STAYING: tuple[dict[str, Any], ...] = (
    {"acceptance_rule": "cactus:delta=0.7"},
    {"acceptance_rule": "cactus:delta=0.5", "budget": 0.8},
    {"acceptance_rule": "clamped:width=1.5", "protect": "digits"},
    {"acceptance_rule": "clamped:width=2.5", "lossless_tokens": 6, "budget": 2.0},
    {"acceptance_rule": "ensemble:weight=0.3", "protect": "json|negation", "protect_threshold": 0.1},
    {"acceptance_rule": "cactus:delta=0.8,solver=exact", "relax_within": ["Answer:", "####"]},
    {"acceptance_rule": "lenience:lenience=0.6", "budget": 0},
)
"""What clients ask for that stay to the end, each rule in one way."""
LEAVING: tuple[dict[str, Any], ...] = (
    {},
    {"acceptance_rule": "lossless"},
    {"acceptance_rule": "cactus:delta=2", "budget": 3.0},
    {"acceptance_rule": "clamped:width=1", "protect": "numbers_and_operators"},
    {"acceptance_rule": "clamped:max_kl=0.1", "acceptance_report": True},
)
"""What others ask for, of which a part leaves."""
MALFORMED: tuple[dict[str, Any], ...] = (
    {"acceptance_rule": "cactus:delta=-1"}, {"acceptance_rule": "typical"}, {"acceptance_report": "yes"}, {"budget": 1}
)  # fmt: skip
BY_RULE = ("verified_positions", "accepted_tokens", "relaxed_tokens", "protected_positions")
SPARE = {"acceptance_rule": "lenience:lenience=0.9"}
"""Of requests that are sent so that the sums of others are handed on."""


@dataclass
class Soak:
    """What clients did, counted and found wrong.

    Attributes:
        prompts: of the word problems.
        end: when clients stop asking.
        reported: sums of reports, by rule.
        answers: how many there were.
        left: how many clients went away.
        refused: how many malformed requests were.
        wrong: what ought not to have been.
    """

    prompts: list[str]
    end: float
    reported: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    answers: int = 0
    left: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


async def ask(client: openai.AsyncOpenAI, soak: Soak, chance: random.Random) -> None:
    """Ask once, in some way."""
    kind = chance.random()
    asked = dict(chance.choice(LEAVING if kind < 0.4 else MALFORMED if kind < 0.45 else STAYING))
    leaves, malformed = kind < 0.2, 0.4 <= kind < 0.45
    stays = kind >= 0.45
    settings: dict[str, Any] = {
        "model": MODEL, "prompt": chance.choice(soak.prompts), "max_tokens": chance.randint(8, 80),
        "temperature": chance.choice((0.7, 1.0)), "top_p": chance.choice((1.0, 0.95)),
        "seed": chance.choice((None, chance.randrange(1000))),
        "extra_body": {"vllm_xargs": asked | ({"acceptance_report": True} if stays else {})},
    }  # fmt: skip
    if chance.random() < 0.5:
        settings |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        if leaves:
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(chance.uniform(0.01, 0.4)):
                    await _response(client, settings)
            soak.left += 1
            return
        metrics = await _response(client, settings)
    except openai.APIError as error:
        if not malformed or int(error.code or 0) != 400:  # a stream has begun by then, and the error is an event in it
            raise
        soak.refused += 1
        return
    if malformed:
        soak.wrong.append(f"{asked} was accepted")
    soak.answers += 1
    if stays:
        report = metrics["speculative_decoding"]["acceptance_report"]
        soak.reported[asked["acceptance_rule"]].update({name: report[name] for name in (*BY_RULE, "nats")})
        if report["nats"] > asked.get("budget", float("inf")):
            soak.wrong.append(f"{asked} spent {report['nats']}")


async def _response(client: openai.AsyncOpenAI, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of an answer, read to its end."""
    response = await client.completions.create(**settings)
    if "stream" not in settings:
        return response.model_dump().get("metrics") or {}
    last: Any = None
    try:
        async for chunk in response:
            last = chunk
    finally:
        await response.close()
    return last.model_dump().get("metrics") or {}


async def load(url: str, soak: Soak, concurrency: int, seed: int) -> None:
    """Have clients ask, so many at a time, until the time is over."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:

        async def go_on(number: int) -> None:
            chance = random.Random(seed * 1000 + number)
            while time.monotonic() < soak.end:
                try:
                    await ask(client, soak, chance)
                except openai.APIError as error:
                    soak.wrong.append(f"{type(error).__name__}: {error}")
                    await asyncio.sleep(0.5)

        await asyncio.gather(*map(go_on, range(concurrency)))


async def watch(server: psutil.Process, end: float, every: float) -> dict[int, list[tuple[float, int]]]:
    """Return the memory of the server's processes in the course of time, in bytes, by their numbers."""
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    while time.monotonic() < end:
        for process in (server, *server.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[process.pid].append((time.monotonic(), process.memory_info().rss))
        await asyncio.sleep(every)
    return found


def growth(samples: list[tuple[float, int]], begin: float, end: float) -> float | None:
    """Return by what part memory in the last quarter of a time exceeds that in the second; None if it was not there.

    Example:
        >>> growth([(0, 50), (30, 100), (45, 100), (80, 103), (95, 103)], 0, 100)
        0.03
    """
    quarter = (end - begin) / 4
    parts = [
        [size for when, size in samples if begin + place * quarter <= when < begin + (place + 1) * quarter]
        for place in (1, 3)
    ]
    if not all(parts):
        return None
    early, late = map(statistics.median, parts)
    return round(late / early - 1, 6)


def metrics(url: str) -> dict[str, float]:
    """Return the samples that Prometheus would read."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=30).read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def hand_on(url: str) -> None:
    """Have the worker hand its sums on, which it does in steps that are a second or more after the last time."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        for _ in range(2):
            time.sleep(1.1)
            client.completions.create(model=MODEL, prompt="Question:", max_tokens=8, extra_body={"vllm_xargs": SPARE})


def differences(soak: Soak, counted: dict[str, float]) -> Iterator[str]:
    """Yield where the server's counters are not what clients counted."""
    for rule, totals in soak.reported.items():
        for name in (*BY_RULE, "nats"):
            key = f'cactus_{"audited_nats" if name == "nats" else name}_total{{rule="{_spelled(rule)}"}}'
            if abs(counted.get(key, 0.0) - totals[name]) > 1e-6 * max(1.0, totals[name]):
                yield f"{key} is {counted.get(key, 0.0)}, but the responses reported {totals[name]}"


def _spelled(rule: str) -> str:
    from cactus_decoding import parse_rule

    return str(parse_rule(rule))


async def kill(url: str, server: subprocess.Popen, soak: Soak, seconds: float) -> list[str]:
    """Kill a worker while requests are under way; return what then ought not to have been."""
    wrong: list[str] = []
    last = [one for one in psutil.Process(server.pid).children(recursive=True) if not one.children()]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=seconds) as client:
        settings = {"model": MODEL, "prompt": soak.prompts[0], "max_tokens": 200, "extra_body": {"ignore_eos": True}}
        asked = [asyncio.create_task(client.completions.create(**settings)) for _ in range(8)]
        await asyncio.sleep(0.2)
        victim = max(last, key=lambda one: one.memory_info().rss)  # beside it there are helpers, which are small
        print(f"killing {victim.pid} ({' '.join(victim.cmdline())[:80]})", flush=True)
        victim.send_signal(signal.SIGKILL)
        ended = await asyncio.gather(*asked, return_exceptions=True)
        for one in ended:
            if isinstance(one, openai.APITimeoutError):
                wrong.append(f"a request hung for {seconds:g} s after a worker was killed")
    try:
        await asyncio.to_thread(server.wait, seconds)
    except subprocess.TimeoutExpired:
        wrong.append(f"the server was still there {seconds:g} s after a worker was killed")
    return wrong


def main() -> int:
    """Run the soak; return 0 if all held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--memory", type=float, default=0.02, help="by what part it may grow")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between looks at the memory")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    prompts = [problem.prompt for problem, _ in zip(parse_task("word_problems").problems, range(200), strict=False)]
    way = Way("soak", 4, {"audit_fraction": 1.0}, {})
    wrong: list[str] = []
    # a cache that the first requests fill: its blocks count as memory once they are written to
    few = ("--block-size=32", f"--num-gpu-blocks-override={10 * given.concurrency}")
    with tempfile.TemporaryDirectory() as folder, serving(way, Path(folder), *few) as (url, process):
        server = psutil.Process(process.pid)
        hand_on(url)
        begin = time.monotonic()
        soak = Soak(prompts, begin + given.seconds)

        async def everything() -> dict[int, list[tuple[float, int]]]:
            sizes, _ = await asyncio.gather(
                watch(server, soak.end, given.every), load(url, soak, given.concurrency, given.seed)
            )
            return sizes

        sizes = asyncio.run(everything())
        hand_on(url)
        wrong += soak.wrong + list(differences(soak, metrics(url)))
        for pid, samples in sizes.items():
            grown = growth(samples, begin, soak.end)
            if grown is None:
                continue
            said = f"process {pid}: {samples[-1][1] / 2**20:.0f} MiB, {100 * grown:+.2f} % since the second quarter"
            tenths = [f"{size / 2**20:.0f}" for _, size in samples[:: max(1, len(samples) // 10)]]
            print(f"{said}; MiB over time: {' '.join(tenths)}", flush=True)
            if abs(grown) > given.memory:
                wrong.append(said)
        print(f"{soak.answers} answers, {soak.left} clients left, {soak.refused} malformed requests refused")
        wrong += asyncio.run(kill(url, process, soak, 90.0))
        code = process.poll()
        log = "".join(path.read_text() for path in Path(folder).glob("*.log"))
        if not code:
            wrong.append(f"after a worker was killed, the server's exit code is {code}")
        if "nobody asked it to" not in log and "died" not in log:
            wrong.append("after a worker was killed, the server's log does not say why it ended")
        print("\n".join(log.splitlines()[-5:]))
    print("\n".join(wrong) if wrong else "all held")
    return bool(wrong)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends too
    sys.exit(main())
