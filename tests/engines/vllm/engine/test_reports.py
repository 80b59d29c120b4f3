"""What responses say of themselves on request: against vLLM's own counts and the server's counters."""

import asyncio
from collections import Counter

import openai
import pytest
from mixed_load import MODEL, PROMPTS
from server_process import Server, hand_on, serving

from cactus_decoding import parse_rule

pytestmark = pytest.mark.engine

PROPOSALS = 4
ASKED: tuple[dict[str, object], ...] = (
    {"acceptance_rule": "cactus:delta=0.9"},
    {"acceptance_rule": "cactus:delta=0.6", "budget": 0.5},
    {"acceptance_rule": "clamped:width=1.7", "protect": "digits"},
    {"acceptance_rule": "ensemble:weight=0.35", "lossless_tokens": 9},
    {"acceptance_rule": "lossless"},
    {"acceptance_rule": "lenience:lenience=0.55", "budget": 0},
    {},
)
"""Each rule is asked for in one way, so that what the server counts of it is what its requests report."""
BY_RULE = ("verified_positions", "accepted_tokens", "relaxed_tokens", "protected_positions", "fell_back_positions")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    counting = ("--audit-fraction=1", "--per-request-spec-decode-metrics=detailed")
    drafting = (
        f"--num-speculative-tokens={PROPOSALS}",
        "--draft-sampling=probabilistic",
        "--trust-request-chat-template",
    )
    with serving(tmp_path_factory.mktemp("server"), *counting, *drafting) as running:
        yield running.wait()


async def _ask(client: openai.AsyncOpenAI, number: int, asked: dict, streamed: bool, **further: object) -> dict:
    settings = {
        "model": MODEL, "prompt": PROMPTS[number % len(PROMPTS)], "max_tokens": 40 + number % 3, "temperature": 0.9,
        "extra_body": {"vllm_xargs": asked},
    } | further  # fmt: skip
    if not streamed:
        response = await client.completions.create(**settings)
        return {"text": response.choices[0].text, "metrics": response.model_dump()["metrics"]}
    stream = await client.completions.create(stream=True, stream_options={"include_usage": True}, **settings)
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    return {"text": text, "metrics": chunks[-1].model_dump()["metrics"]}


def ask(server: Server, asked: list[dict], streamed: bool = False, **further: object) -> list[dict]:
    async def everything() -> list[dict]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            tasks = (_ask(client, place, one, streamed, **further) for place, one in enumerate(asked))
            return await asyncio.gather(*tasks)

    return asyncio.run(everything())


@pytest.mark.parametrize("streamed", [False, True])
def test_reports_add_up_to_the_server_s_counters(server: Server, streamed: bool) -> None:
    hand_on(server.url)
    before = server.metrics()
    asked = [one | {"acceptance_report": True} for one in ASKED for _ in range(4)]
    answers = ask(server, asked, streamed)
    hand_on(server.url)
    after = server.metrics()
    totals: dict[str, Counter] = {}
    for one, answer in zip(asked, answers, strict=True):
        metrics = answer["metrics"]["speculative_decoding"]
        report = metrics["acceptance_report"]
        totals.setdefault(str(parse_rule(str(one.get("acceptance_rule", "lossless")))), Counter()).update(
            {name: report[name] for name in (*BY_RULE, "nats")}
        )
        drafted, accepted = report["drafted_by_position"], report["accepted_by_position"]
        assert (len(drafted), len(accepted)) == (PROPOSALS, PROPOSALS)
        assert sum(drafted) == metrics["num_draft_tokens"] > 0
        assert sum(accepted) == metrics["num_accepted_draft_tokens"]
        histogram = metrics["acceptance_histogram"]
        assert accepted == [sum(histogram[place + 1 :]) for place in range(PROPOSALS)]
        steps = list(zip(metrics["per_step_drafted"], metrics["per_step_accepted"], strict=True))
        assert drafted == [sum(count > place for count, _ in steps) for place in range(PROPOSALS)]
        if one.get("acceptance_rule", "lossless") != "lossless":
            visited = sum(min(count, kept + 1) for count, kept in steps)
            kinds = ("verified_positions", "fell_back_positions", "protected_positions")
            assert sum(report[kind] for kind in kinds) == visited
        if "budget" in one:
            assert report["nats"] <= one["budget"]
    for rule, total in totals.items():

        def counted(name: str, rule: str = rule) -> float:
            counter = f'cactus_{name}_total{{rule="{rule}"}}'
            return after.get(counter, 0.0) - before.get(counter, 0.0)

        for name in BY_RULE:
            assert total[name] == pytest.approx(counted(name), abs=1e-6), (rule, name)
        assert total["nats"] == pytest.approx(counted("audited_nats"), abs=1e-6), rule
    assert totals["lossless"]["verified_positions"] == totals["lossless"]["nats"] == 0
    for rule in ("cactus:delta=0.9", "clamped:width=1.7", "ensemble:weight=0.35"):
        assert totals[rule]["nats"] > 0
        assert totals[rule]["relaxed_tokens"] > 0
    assert totals["cactus:delta=0.6"]["fell_back_positions"] > 0
    assert totals["clamped:width=1.7"]["protected_positions"] > 0
    assert totals["lenience:lenience=0.55"]["fell_back_positions"] > 0


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_the_front_end_ends_has_its_report(server: Server, streamed: bool) -> None:
    answers = ask(server, [ASKED[0] | {"acceptance_report": True}] * 8, streamed, stop=["."], temperature=0.5)
    assert all("." not in answer["text"] for answer in answers)
    for answer in answers:  # vLLM's own metrics are there only because a report is
        assert sum(answer["metrics"]["speculative_decoding"]["acceptance_report"]["drafted_by_position"]) > 0


def test_who_does_not_ask_gets_what_vllm_says(server: Server) -> None:
    answers = ask(server, [ASKED[0], ASKED[0] | {"acceptance_report": False}])
    assert all("acceptance_report" not in answer["metrics"]["speculative_decoding"] for answer in answers)


def test_chat_has_it_too(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        settings = {
            "model": MODEL, "messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 20,
            "extra_body": {
                "vllm_xargs": ASKED[0] | {"acceptance_report": 1}, "chat_template": "{{messages[0].content}}"
            },
        }  # fmt: skip
        whole = client.chat.completions.create(**settings).model_dump()
        *_, last = client.chat.completions.create(stream=True, stream_options={"include_usage": True}, **settings)
    for response in (whole, last.model_dump()):
        assert sum(response["metrics"]["speculative_decoding"]["acceptance_report"]["drafted_by_position"]) > 0


def test_malformed_values_are_refused(server: Server) -> None:
    said = "acceptance_report must be true or false, but is 'yes'"
    asked = {"vllm_xargs": ASKED[0] | {"acceptance_report": "yes"}}
    settings = {"model": MODEL, "prompt": PROMPTS[0], "extra_body": asked}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match=said):
            client.completions.create(**settings)
        with pytest.raises(openai.APIError, match=said) as refusal:
            list(client.completions.create(stream=True, **settings))
    assert int(refusal.value.code) == 400  # the stream has begun by then, and the error is an event in it
