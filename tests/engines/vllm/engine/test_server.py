"""A real server on the bundled pair under a mixed load, beside one that has only the repair of vLLM's own fault."""

from __future__ import annotations

import asyncio
from pathlib import Path

import only_repair
import openai
import pytest
from mixed_load import MALFORMED, MODEL, PROMPTS, greedy_texts, seeded_answers, send_mix
from server_process import Server, serving
from soak import UNMETERED, hand_on, seeded, send

from cactus_decoding.cli import main
from cactus_decoding.lab.evaluation.runs.results import read_results

pytestmark = pytest.mark.engine
REQUESTS, SOAK = 200, 300


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
    assert len(MALFORMED) == 40
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


def test_three_hundred_at_once_half_of_them_seeded(servers: tuple[Server, Server]) -> None:
    ours, _ = servers
    hand_on(ours.url)
    before = ours.metrics()
    tally = asyncio.run(send(ours.url, list(range(SOAK)), malformed=True))
    assert not tally.wrong, "\n".join(tally.wrong)
    assert (tally.refused, len(tally.texts)) == (len(MALFORMED), SOAK)

    counted = {name: value - before.get(name, 0.0) for name, value in ours.metrics().items()}

    def total(name: str) -> float:
        return sum(value for key, value in counted.items() if key.partition("{")[0] == name)

    assert total("vllm:request_success_total") == SOAK
    assert total("vllm:prompt_tokens_total") == tally.prompt_tokens
    assert total("vllm:generation_tokens_total") == tally.generated_tokens
    assert total("vllm:spec_decode_num_drafts_total") == tally.drafts
    assert total("vllm:spec_decode_num_draft_tokens_total") == tally.drafted
    assert total("vllm:spec_decode_num_accepted_tokens_total") == tally.accepted

    hand_on(ours.url)
    ruled = ours.metrics()
    for rule in UNMETERED:
        for name, value in (("accepted_tokens", tally.accepted_by[rule]), ("verified_positions", tally.verified[rule])):
            counter = f'cactus_{name}_total{{rule="{rule}"}}'
            assert ruled[counter] - before.get(counter, 0.0) == value > 0

    numbers = [number for number in reversed(range(SOAK)) if seeded(number)]
    again = asyncio.run(send(ours.url, numbers))
    assert again.texts == {number: tally.texts[number] for number in numbers}
    assert ours.process.poll() is None


def test_metrics_by_rule_beside_vllm_s_own(servers: tuple[Server, Server]) -> None:
    ours, _ = servers
    rule = "cactus:delta=2.0"
    with openai.OpenAI(base_url=f"{ours.url}/v1", api_key="none", max_retries=0) as client:
        for _ in range(40):  # the sums of a step are handed on about once a second
            client.completions.create(
                model=MODEL, prompt=PROMPTS[0], max_tokens=40, extra_body={"vllm_xargs": {"acceptance_rule": rule}}
            )
    metrics = ours.metrics()

    def of(name: str) -> float:
        return metrics[f'cactus_{name}_total{{rule="{rule}"}}']

    assert of("verified_positions") >= of("accepted_tokens") >= of("relaxed_tokens") > 0
    assert of("conditional_nats") > 0
    assert 0.1 < of("audited_positions") / of("verified_positions") < 0.3
    assert of("audited_nats") > 0
    assert any(name.startswith("vllm:spec_decode_num_accepted_tokens_total") for name in metrics)


def test_errors_say_what_is_wrong(servers: tuple[Server, Server]) -> None:
    ours, _ = servers
    with openai.OpenAI(base_url=f"{ours.url}/v1", api_key="none", max_retries=0) as client:
        for xargs, said in (
            ({"acceptance_rule": "cactus:delta=-1"}, "delta must be in"),
            ({"acceptance_rule": "typical"}, "does not work in vLLM"),
            ({"acceptance_rule": "cactus:delta=1", "budget": -2}, "budget must be in"),
            ({"budget": 1}, "without acceptance_rule"),
        ):
            with pytest.raises(openai.BadRequestError, match=said):
                client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": "1 + 1"}], extra_body={"vllm_xargs": xargs}
                )


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
        rules = (
            "--rule",
            "lossless",
            "--rule",
            "cactus:delta=2",
            "--budget",
            "4",
            "--output",
            str(tmp_path / f"ruled{place}.jsonl"),
        )
        code = main([*given, "1", *asked, *rules])
        assert code == (2 if place else 0)
    assert "takes no acceptance rules" in capsys.readouterr().err
    lossless, relaxed = read_results(tmp_path / "ruled0.jsonl")
    assert {0} == set(lossless.answers["nats"]) == set(lossless.answers["relaxed"])
    assert all(0 < nats <= 4 for nats in relaxed.answers["nats"])
    assert sum(relaxed.answers["relaxed"]) > 0
    assert (relaxed.column("steps") == relaxed.column("recovered") + relaxed.column("bonus")).all()
    assert lossless.provenance["server"]["rules"] == "vllm_xargs"
