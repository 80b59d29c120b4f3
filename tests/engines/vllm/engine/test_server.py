"""A real server on the bundled pair under a mixed load, beside one that has only the repair of vLLM's own fault."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import only_repair
import openai
import pytest
from mixed_load import MALFORMED, MODEL, PROMPTS, greedy_texts, seeded_answers, send_mix
from server_process import SECONDS, Server, children_of, serving

from cactus_decoding.cli import main
from cactus_decoding.lab.evaluation.runs.results import read_results

pytestmark = pytest.mark.engine
REQUESTS = 300


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Start both servers at once; the one without our plug-in says what stock vLLM answers."""
    folder = tmp_path_factory.mktemp("servers")
    counting = ("--audit-fraction=0.2", "--per-request-spec-decode-metrics=detailed")
    chunking = ("--max-num-batched-tokens=320",)  # what a full batch verifies; longer prompts are read in parts
    with serving(folder, *counting, *chunking) as ours, serving(folder, **only_repair.environment(folder)) as stock:
        yield ours.wait(), stock.wait()


@pytest.fixture(scope="module")
def stock_greedy(servers: tuple[Server, Server]) -> dict[str, str]:
    """Return the greedy answers that stock vLLM repeats whatever else is in the batch."""
    alone = dict(asyncio.run(greedy_texts(servers[1].url, at_once=False)))
    together = asyncio.run(greedy_texts(servers[1].url, at_once=True))
    stable = {prompt: text for prompt, text in alone.items() if all(t == text for p, t in together if p == prompt)}
    assert len(stable) >= len(PROMPTS) // 2
    return stable


def test_seeded_answers_without_a_rule_are_stock_to_the_last_bit(servers: tuple[Server, Server]) -> None:
    async def both() -> list[list[tuple[str, list[float]]]]:
        return await asyncio.gather(*(seeded_answers(server.url) for server in servers))

    ours, stock = asyncio.run(both())
    assert ours == stock
    assert len({text for text, _ in stock}) > len(PROMPTS)  # seeds do something


def test_a_mixed_load(servers: tuple[Server, Server], stock_greedy: dict[str, str]) -> None:
    ours, _ = servers
    outcome = asyncio.run(send_mix(ours.url, REQUESTS))
    assert not outcome.wrong, "\n".join(outcome.wrong)
    assert outcome.refused == len(MALFORMED)
    assert outcome.cancelled >= 10
    assert outcome.answers + outcome.cancelled == REQUESTS
    compared = [(text, stock_greedy[prompt]) for prompt, text in outcome.greedy if prompt in stock_greedy]
    assert len(compared) >= 10
    assert all(text == expected for text, expected in compared)
    assert ours.process.poll() is None
    assert asyncio.run(greedy_texts(ours.url, at_once=False))  # it still answers


@pytest.fixture(scope="module")
def client(servers: tuple[Server, Server]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{servers[0].url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_errors_say_what_is_wrong(client: openai.OpenAI) -> None:
    for xargs, said in (
        ({"acceptance_rule": "typical"}, "does not work in vLLM"),
        ({"acceptance_rule": "cactus:delta=1", "budget": -2}, "budget must be in"),
        ({"num_speculative_tokens": 99}, "num_speculative_tokens must be between 0 and 4, but is 99"),
        ({"num_speculative_tokens": "two"}, "num_speculative_tokens must be an integer, but is 'two'"),
        ({"acceptance_rule": "clamped:width=1", "protect": "(a+)+$"}, "no regular expression of its own"),
    ):
        with pytest.raises(openai.BadRequestError, match=said) as refusal:
            client.completions.create(model=MODEL, prompt=PROMPTS[0], extra_body={"vllm_xargs": xargs})
        assert refusal.value.status_code == 400


def test_evaluations_of_both_servers_have_the_texts_of_this_process(
    servers: tuple[Server, Server], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    given = ("eval", "--no-chat", "--problems", "8", "--max-new-tokens", "60", "--temperature")
    here = tmp_path / "here.jsonl"
    assert main([*given, "0", "--threads", "1", "--output", str(here)]) == 0, capsys.readouterr().err
    (expected,) = read_results(here)
    for place, server in enumerate(servers):
        there = tmp_path / f"{place}.jsonl"
        asked = ("--server", server.url, "--concurrency", "8")
        assert main([*given, "0", *asked, "--output", str(there)]) == 0, capsys.readouterr().err
        (found,) = read_results(there)
        assert [found.answers[name] for name in ("id", "text")] == [expected.answers[name] for name in ("id", "text")]
        ruled = ("--output", str(tmp_path / f"ruled{place}.jsonl"))
        rules = ("--rule", "lossless", "--rule", "cactus:delta=2", "--budget", "4", *ruled)
        code = main([*given, "1", *asked, *rules])
        assert code == (2 if place else 0)
    assert "takes no acceptance rules" in capsys.readouterr().err
    lossless, relaxed = read_results(tmp_path / "ruled0.jsonl")
    assert {0} == set(lossless.answers["nats"]) == set(lossless.answers["relaxed"])
    assert all(0 < nats <= 4 for nats in relaxed.answers["nats"])
    assert sum(relaxed.answers["relaxed"]) > 0
    assert (relaxed.column("steps") == relaxed.column("recovered") + relaxed.column("bonus")).all()
    assert lossless.provenance["server"]["rules"] == "vllm_xargs"


MOMENTS = ("", "non-default args", "Loading weights took")
"""What the log says by then, if anything; every other server of these tests has started up when it is ended."""


@pytest.mark.parametrize("said", MOMENTS)
def test_one_signal_at_any_moment_ends_it(said: str, tmp_path: Path) -> None:
    with serving(tmp_path) as server:  # which sends it, and looks at what is left
        end, vllm = time.monotonic() + SECONDS, list[int]()
        while not vllm or said not in server.log.read_text():
            assert server.process.poll() is None, server.log.read_text()
            assert time.monotonic() < end, server.log.read_text()
            time.sleep(0.1)
            vllm = vllm or children_of(server.process.pid)
