"""Three hundred different requests at once, half of them seeded, and what their clients counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

import openai
from mixed_load import MALFORMED, MODEL, QUESTIONS, otherwise_than_refused

ASKED: tuple[dict[str, object], ...] = (
    {},
    {"acceptance_rule": "lossless"},
    {"acceptance_rule": "cactus:delta=0.7"},
    {"acceptance_rule": "cactus:delta=0.7", "budget": 1.2},
    {"acceptance_rule": "clamped:width=1.5"},
    {"acceptance_rule": "clamped:width=1.5", "budget": 0.6},
    {"acceptance_rule": "cactus:delta=0.8,solver=exact"},
    {"acceptance_rule": "clamped:width=2.0"},
    {"acceptance_rule": "cactus:delta=0.7,solver=exact", "budget": 0},
)
"""Values of ``vllm_xargs``; odd in number, so that each comes with a seed and without."""
UNMETERED = ("cactus:delta=0.8,solver=exact", "clamped:width=2.0")
"""The rules that no request has a budget for, so that the plug-in counts each of their positions."""
SPARE = "lenience:lenience=0.9"
"""A rule for requests that are sent so that the sums of other rules are handed on."""


@dataclass
class Tally:
    """What clients counted.

    Attributes:
        texts: of the answers, by the number of their request.
        wrong: descriptions of what was not answered as it ought to be.
        refused: malformed requests answered with status 400.
        prompt_tokens, generated_tokens: by vLLM's ``usage``.
        drafts, drafted, accepted: steps with proposals, proposals and those accepted.
        verified, accepted_by: positions that were looked at, and tokens accepted, by rule.
    """

    texts: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    refused: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    verified: Counter[str] = field(default_factory=Counter)
    accepted_by: Counter[str] = field(default_factory=Counter)


async def send(url: str, numbers: list[int], malformed: bool = False) -> Tally:
    """Send requests, by their numbers, all at once, the malformed ones among them."""
    tally = Tally()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=280) as client:
        tasks = [_ask(client, tally, number) for number in numbers]
        for place, xargs in enumerate(MALFORMED if malformed else ()):
            tasks.insert(place * (len(numbers) // len(MALFORMED) + 1), _ask_wrongly(client, tally, xargs))
        await asyncio.gather(*tasks)
    return tally


def seeded(number: int) -> bool:
    """Say whether the request of a number has a seed."""
    return number % 2 == 0


def hand_on(url: str) -> None:
    """Have the worker hand its sums on, which it does in steps that are a second or more after the last time."""
    time.sleep(1.1)
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=280) as client:
        client.completions.create(
            model=MODEL, prompt=QUESTIONS[0], max_tokens=8, extra_body={"vllm_xargs": {"acceptance_rule": SPARE}}
        )


async def _ask(client: openai.AsyncOpenAI, tally: Tally, number: int) -> None:
    asked = ASKED[number % len(ASKED)]
    questions = [QUESTIONS[(number + place) % len(QUESTIONS)] for place in range(1 + number % 3)]
    try:
        response = await client.completions.create(
            model=MODEL,
            prompt="Question: " + "\n".join(questions) + "\nAnswer:",
            max_tokens=30 + number % 11,
            temperature=0.9 if number % 5 else 1.0,
            seed=number if seeded(number) else None,
            extra_body={"vllm_xargs": asked} if asked else {},
        )
    except openai.APIError as error:
        tally.wrong.append(f"request {number} with {asked}: {error}")
        return
    (choice,) = response.choices
    tally.texts[number] = choice.text
    tally.prompt_tokens += response.usage.prompt_tokens
    tally.generated_tokens += response.usage.completion_tokens
    steps = response.model_dump()["metrics"]["speculative_decoding"]
    pairs = list(zip(steps["per_step_drafted"], steps["per_step_accepted"], strict=True))
    rule = str(asked.get("acceptance_rule", "lossless"))
    tally.drafts += len(pairs)
    tally.drafted += sum(drafted for drafted, _ in pairs)
    tally.accepted += sum(accepted for _, accepted in pairs)
    tally.accepted_by[rule] += sum(accepted for _, accepted in pairs)
    tally.verified[rule] += sum(min(accepted + 1, drafted) for drafted, accepted in pairs)


async def _ask_wrongly(client: openai.AsyncOpenAI, tally: Tally, xargs: object) -> None:
    if said := await otherwise_than_refused(client, xargs):
        tally.wrong.append(said)
    else:
        tally.refused += 1
