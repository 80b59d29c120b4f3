"""Many different requests at once, as the `openai` client sends them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import openai

MODEL = "word-problems"
QUESTIONS = [
    f"{name} has {count} {thing}. She gives away {less} {thing}. How many {thing} are left?"
    for name, count, less, thing in (
        ("Anna", 43, 17, "stamps"),
        ("Lily", 19, 12, "pears"),
        ("Mia", 52, 31, "coins"),
        ("Ella", 27, 8, "pens"),
    )
]
PROMPTS = [f"Question: {question}\nAnswer:" for question in QUESTIONS]
RULES = (
    None,
    "lossless",
    "cactus:delta=0",
    "cactus:delta=0.5",
    "cactus:delta=3",
    "cactus:delta=1,solver=exact",
    "ensemble:weight=0.4",
    "lenience:lenience=0.5",
    "clamped:width=1",
    "clamped:max_kl=0.2",
)
GREEDY = {"temperature": 0.0}
WAYS: tuple[dict[str, Any], ...] = (
    {},
    GREEDY,
    {"seed": 11},
    {"stop": ["####"]},
    {"logprobs": 3},
    {"top_p": 0.9, "extra_body": {"top_k": 20}},
    {"presence_penalty": 0.5},
    {"n": 2},
    {"extra_body": {"min_tokens": 8}},
)
MALFORMED: tuple[Any, ...] = (
    *({"acceptance_rule": text} for text in ("", "cactus", "cactus:delta=-1", "typical", "clamped:width=1,max_kl=1")),
    {"acceptance_rule": ["cactus:delta=1"]},
    {"budget": 1.0},
    {"acceptance_rule": "cactus:delta=1", "budget": "2"},
    {"acceptance_rule": {"cactus": 1}},
    {"acceptance_rules": "cactus:delta=1"},
    "cactus:delta=1",
)
"""Values of ``vllm_xargs`` that must be refused with status 400."""


@dataclass
class Outcome:
    """What came of the requests.

    Attributes:
        answers: number of requests answered in full.
        cancelled: number of streams that were left half-way.
        refused: number of malformed requests answered with status 400.
        wrong: descriptions of anything else.
        greedy: text by prompt of greedy requests without a rule and with one.
    """

    answers: int = 0
    cancelled: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    greedy: list[tuple[str, str]] = field(default_factory=list)


async def send_mix(url: str, requests: int) -> Outcome:
    """Send so many well-formed requests, and the malformed ones among them, all at once."""
    outcome = Outcome()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=280) as client:
        good = [_ask(client, outcome, number) for number in range(requests)]
        bad = [_ask_wrongly(client, outcome, xargs) for xargs in MALFORMED]
        step = len(good) // len(bad)
        for place, task in enumerate(bad):
            good.insert(place * (step + 1), task)
        await asyncio.gather(*good)
    return outcome


async def _ask(client: openai.AsyncOpenAI, outcome: Outcome, number: int) -> None:
    rule, way = RULES[number % len(RULES)], dict(WAYS[number % len(WAYS)])
    prompt, streamed = PROMPTS[number % len(PROMPTS)], number % 4 == 1
    xargs = {} if rule is None else {"acceptance_rule": rule}
    if rule is not None and number % 3 == 0:
        xargs["budget"] = 1.5
    body = way.pop("extra_body", {}) | ({"vllm_xargs": xargs} if xargs else {})
    settings = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "temperature": 1.0, "extra_body": body} | way
    try:
        if streamed:
            stream = await client.completions.create(stream=True, **settings)
            chunks = 0
            async for _ in stream:
                chunks += 1
                if number % 8 == 5 and chunks == 2:
                    await stream.close()
                    outcome.cancelled += 1
                    return
            outcome.answers += 1
            return
        response = await client.completions.create(**settings)
    except openai.APIError as error:
        outcome.wrong.append(f"request {number} with {rule} and {way}: {error}")
        return
    _look_at(response, way, number, outcome)
    if way == GREEDY:
        outcome.greedy.append((prompt, response.choices[0].text))


def _look_at(response: Any, way: dict[str, Any], number: int, outcome: Outcome) -> None:
    right = len(response.choices) == way.get("n", 1)
    for choice in response.choices:
        right &= choice.finish_reason in ("stop", "length")
        right &= "stop" not in way or "####" not in choice.text
        if "logprobs" in way:
            logprobs = choice.logprobs.token_logprobs
            right &= len(logprobs) > 0 and all(value <= 1e-6 for value in logprobs)
    if right:
        outcome.answers += 1
    else:
        outcome.wrong.append(f"request {number} with {way}: {response}")


async def _ask_wrongly(client: openai.AsyncOpenAI, outcome: Outcome, xargs: Any) -> None:
    if said := await otherwise_than_refused(client, xargs):
        outcome.wrong.append(said)
    else:
        outcome.refused += 1


async def otherwise_than_refused(client: openai.AsyncOpenAI, xargs: Any) -> str:
    """Return what became of a request with malformed ``vllm_xargs``; nothing if it got status 400."""
    try:
        await client.completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=4, extra_body={"vllm_xargs": xargs})
    except openai.BadRequestError:
        return ""
    except openai.APIError as error:
        return f"{xargs}: {error}"
    return f"{xargs} was accepted"


async def greedy_texts(url: str, at_once: bool) -> list[tuple[str, str]]:
    """Return the prompts and their greedy continuations, asked for together or one after the other."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=280) as client:

        async def ask(prompt: str) -> tuple[str, str]:
            response = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=40, temperature=0.0)
            return prompt, response.choices[0].text

        if at_once:
            return list(await asyncio.gather(*map(ask, PROMPTS * 4)))
        return [await ask(prompt) for prompt in PROMPTS]


async def seeded_answers(url: str) -> list[tuple[str, list[float]]]:
    """Return text and log-probabilities of answers at temperature 1, one after the other; vLLM repeats such ones."""
    answers = []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=280) as client:
        for seed in (3, 4):
            for prompt in PROMPTS:
                response = await client.completions.create(
                    model=MODEL, prompt=prompt, max_tokens=40, temperature=1.0, seed=seed, logprobs=0
                )
                (choice,) = response.choices
                answers.append((choice.text, choice.logprobs.token_logprobs))
    return answers
