"""A real server and what its clients ask of protection and phases: nonsense gets status 400, the rest is counted."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from mixed_load import MODEL, PROMPTS
from server_process import Server, serving
from soak import hand_on
from support.malformed_protection import MALFORMED

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server")) as started:
        yield started.wait()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, max_tokens: int = 12, **xargs: object) -> openai.types.Completion:
    return client.completions.create(
        model=MODEL, prompt=PROMPTS[0], max_tokens=max_tokens, extra_body={"vllm_xargs": xargs}
    )


@pytest.mark.parametrize(("xargs", "said"), MALFORMED, ids=[str(xargs) for xargs, _ in MALFORMED])
def test_malformed_values_are_answered_by_400(xargs: dict, said: str, client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=said) as refusal:
        ask(client, **xargs)
    assert refusal.value.status_code == 400


def test_there_are_twenty_of_them_and_a_good_one_is_answered_after_them(server: Server, client: openai.OpenAI) -> None:
    assert len(MALFORMED) >= 20
    good = {"acceptance_rule": "clamped:width=1", "protect": "digits|json", "protect_threshold": 0.02}
    for more in ({}, {"lossless_tokens": 5, "relax_within": ["Answer:", "####"], "budget": 1.0}):
        response = ask(client, **good, **more)
        assert response.usage.completion_tokens > 0
        assert response.choices[0].finish_reason in ("stop", "length")
    assert server.process.poll() is None


def test_protected_positions_are_counted_by_rule(server: Server, client: openai.OpenAI) -> None:
    counts = []
    for rule, policy in (
        ("clamped:width=0.41", {}),
        ("clamped:width=0.42", {"protect": "digits"}),
        ("clamped:width=0.43", {"lossless_tokens": 1000}),
    ):
        for _ in range(4):
            ask(client, 40, acceptance_rule=rule, **policy)
        hand_on(server.url)
        metrics = server.metrics()
        names = ("protected_positions", "verified_positions", "conditional_nats")
        counts.append([metrics[f'cactus_{name}_total{{rule="{rule}"}}'] for name in names])
    free, digits, nothing = counts
    assert free[0] == 0 < free[1]
    assert digits[0] > 0
    assert digits[1] > 0
    assert nothing[0] > 0
    assert nothing[1:] == [0, 0]
