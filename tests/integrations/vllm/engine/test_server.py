"""A real server on the bundled pair under a mixed load, beside one that has only the repair of vLLM's own fault."""

from __future__ import annotations

import asyncio

import only_repair
import openai
import pytest
from mixed_load import MALFORMED, MODEL, PROMPTS, greedy_texts, seeded_answers, send_mix
from server_process import Server, serving

pytestmark = pytest.mark.engine
REQUESTS = 200


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Start both servers at once; the one without our plug-in says what stock vLLM answers."""
    folder = tmp_path_factory.mktemp("servers")
    audited = ("--audit-fraction=0.2",)
    with serving(folder, *audited) as ours, serving(folder, **only_repair.environment(folder)) as stock:
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
