"""What responses say of themselves on request: against vLLM's own counts, the server's counters, and a replay."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import openai
import pytest
import torch
from engine_run import run_jobs
from mixed_load import MODEL, PROMPTS
from server_process import Server, hand_on, serving
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import parse_rule, zoo
from cactus_decoding.engines.openai.relaxed_logits import lift_cost, relaxed_probability

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
BY_RULE = ("verified_positions", "accepted_tokens", "relaxed_tokens", "protected_positions")
MALFORMED = (
    ({"acceptance_report": "yes"}, "acceptance_report must be true or false, but is 'yes'"),
    ({"acceptance_report": 2}, "must be true or false"),
    ({"acceptance_report": [1]}, "must be true or false"),
    ({"acceptance_reports": 1}, "did you mean 'acceptance_report'"),
    ({"acceptance_summary": 1}, "there is no key 'acceptance_summary'"),
    ({"acceptance_metrics": 1}, "a key of the server's --additional-config"),
)


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
    """Return the text of an answer and its metrics."""
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
            {name: report[name] for name in (*BY_RULE, "nats", "fell_back_positions")}
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


@pytest.mark.parametrize(("asked", "said"), MALFORMED, ids=[json.dumps(asked) for asked, _ in MALFORMED])
def test_malformed_values_are_refused(server: Server, asked: dict, said: str) -> None:
    settings = {"model": MODEL, "prompt": PROMPTS[0], "extra_body": {"vllm_xargs": ASKED[0] | asked}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match=said):
            client.completions.create(**settings)
        with pytest.raises(openai.APIError, match=said) as refusal:
            list(client.completions.create(stream=True, **settings))
    assert int(refusal.value.code) == 400  # the stream has begun by then, and the error is an event in it


RULE, BUDGETS, COPIES = "cactus:delta=1", (None, 0.4), 4


@pytest.fixture(scope="module")
def offline() -> list[dict]:
    """Return jobs of an offline engine with greedy drafts: with reports, and the same seeds without."""
    prompts = [AutoTokenizer.from_pretrained(zoo.path("target"))(prompt).input_ids for prompt in PROMPTS]

    def job(budget: float | None, **extra: object) -> dict:
        keys = {"acceptance_rule": RULE, **({} if budget is None else {"budget": budget}), **extra}
        sampling = [
            {"temperature": 1.0, "max_tokens": 40, "ignore_eos": True, "seed": seed, "extra_args": keys}
            for seed in range(len(prompts) * COPIES)
        ]
        return {"prompts": prompts, "copies": COPIES, "sampling": sampling}

    jobs = [*(job(budget, acceptance_report=True) for budget in BUDGETS), *map(job, BUDGETS)]
    return run_jobs(
        jobs,
        model=str(zoo.path("target")),
        speculative_config={"model": str(zoo.path("draft")), "num_speculative_tokens": PROPOSALS},
        per_request_spec_decode_metrics="detailed",
    )


def test_asking_for_a_report_changes_no_token(offline: list[dict]) -> None:
    for asked, plain in zip(offline[:2], offline[2:], strict=True):
        assert asked["token_ids"] == plain["token_ids"]
        assert all("acceptance_report" not in metrics for metrics in plain["metrics"])


def replay(prompt: list[int], tokens: list[int], steps: list[tuple[int, int]], budget: float) -> list[float]:
    """Return nats, verified positions, relaxed tokens and fallen-back positions of an answer with greedy drafts."""
    models = [AutoModelForCausalLM.from_pretrained(zoo.path(role), dtype=torch.float32) for role in ("target", "draft")]
    rule, text, emitted = parse_rule(RULE), [*prompt, tokens[0]], iter(tokens[1:])
    nats, verified, relaxed, fell_back = 0.0, 0, 0.0, 0
    for drafted, accepted in steps:
        for depth in range(min(drafted, accepted + 1)):
            with torch.no_grad():
                target, draft = (model(torch.tensor([text])).logits[0, -1].double() for model in models)
            token = int(draft.argmax())
            q = target.softmax(-1)[token]
            h = relaxed_probability(rule, q)
            cost = lift_cost(q, h).item()
            if nats + cost <= budget and nats < budget:
                nats, verified = nats + cost, verified + 1
                relaxed += (1 - q / h).item() if depth < accepted else 0.0
            else:
                fell_back += 1
            if depth < accepted:
                text.append(token)
                assert next(emitted, token) == token
        if (further := next(emitted, None)) is not None:
            text.append(further)
    return [nats, verified, relaxed, fell_back]


@pytest.mark.parametrize("job", range(len(BUDGETS)))
def test_a_replay_with_the_models_gives_the_report(job: int, offline: list[dict]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    for place in range(0, len(PROMPTS) * COPIES, COPIES):
        metrics, tokens = offline[job]["metrics"][place], offline[job]["token_ids"][place]
        steps = list(zip(metrics["per_step_drafted"], metrics["per_step_accepted"], strict=True))
        report = metrics["acceptance_report"]
        names = ("nats", "verified_positions", "relaxed_tokens", "fell_back_positions")
        prompt = tokenizer(PROMPTS[place // COPIES]).input_ids
        expected = replay(prompt, tokens, steps, float("inf") if BUDGETS[job] is None else BUDGETS[job])
        assert [report[name] for name in names] == pytest.approx(expected, abs=2e-3)
        assert report["fell_back_positions"] == expected[3]
    assert sum(metrics["acceptance_report"]["fell_back_positions"] for metrics in offline[1]["metrics"]) > 0


def test_reports_add_up_to_what_the_engine_counted(offline: list[dict]) -> None:
    for job in offline[:2]:
        reports = [metrics["acceptance_report"] for metrics in job["metrics"]]
        assert sum(sum(report["drafted_by_position"]) for report in reports) == job["counters"]["draft_tokens"]
        assert sum(sum(report["accepted_by_position"]) for report in reports) == job["counters"]["accepted_tokens"]
