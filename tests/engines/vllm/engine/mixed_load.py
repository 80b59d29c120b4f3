"""Many different requests at once, as the `openai` client sends them."""

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
    {"temperature": 0.0, "rule": "relaxed_greedy:margin=0.5"},
    {"temperature": 0.0, "rule": "mars:ratio=0.9,logits=raw"},
)
"""Settings of requests; a rule in them is asked for instead of one of the rules above."""
MALFORMED: tuple[Any, ...] = (
    {"acceptance_rule": "cactus:delta=-1"},
    {"acceptance_rule": {"cactus": 1}},
    {"acceptance_rule": "relaxed_greedy:margin=1"},
    {"budget": 1.0},
    {"acceptance_rules": "cactus:delta=1"},
    "cactus:delta=1",
)
"""Values of ``vllm_xargs`` that must be refused with status 400."""


@dataclass
class Outcome:
    """What came of the requests."""

    answers: int = 0
    cancelled: int = 0
    refused: int = 0  # malformed ones, with status 400
    wrong: list[str] = field(default_factory=list)  # anything else
    greedy: list[tuple[str, str]] = field(default_factory=list)  # prompts and texts, without a rule and with one


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
    prompt, streamed, plain = PROMPTS[number % len(PROMPTS)], number % 4 == 1, way == GREEDY
    rule = way.pop("rule", rule)
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
    if plain:
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
    try:
        await client.completions.create(model=MODEL, prompt=PROMPTS[0], max_tokens=4, extra_body={"vllm_xargs": xargs})
        outcome.wrong.append(f"{xargs} was accepted")
    except openai.BadRequestError:
        outcome.refused += 1
    except openai.APIError as error:
        outcome.wrong.append(f"{xargs}: {error}")


async def answers(
    url: str, at_once: bool, seeds: tuple[int | None, ...] = (None,), **given: Any
) -> list[tuple[str, str, list[float] | None]]:
    """Return prompts, their continuations and log-probabilities, asked for together or one after the other."""
    asked = [(prompt, seed) for seed in seeds for prompt in PROMPTS]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=280) as client:

        async def ask(prompt: str, seed: int | None) -> tuple[str, str, list[float] | None]:
            made = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=40, seed=seed, **given)
            (choice,) = made.choices
            return prompt, choice.text, choice.logprobs and choice.logprobs.token_logprobs

        if at_once:
            return list(await asyncio.gather(*(ask(*each) for each in asked * 4)))
        return [await ask(*each) for each in asked]


async def greedy_texts(url: str, at_once: bool) -> list[tuple[str, str]]:
    return [each[:2] for each in await answers(url, at_once, temperature=0.0)]


async def seeded_answers(url: str) -> list[tuple[str, list[float]]]:
    """Return texts and log-probabilities at temperature 1, one after the other; vLLM repeats such ones."""
    return [each[1:] for each in await answers(url, False, (3, 4), temperature=1.0, logprobs=0)]
