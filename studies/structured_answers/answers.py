"""Thirty schemas, many answers each from a real model at a high temperature: is every answer valid?

    .venv/bin/python -m studies.structured_answers.answers MODEL.gguf    writes results/answers.json

Answers are kept as they come: the same command goes on where an interrupted one stopped. An answer that the limit of
tokens cuts is counted apart.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from cactus_decoding import generate, load_pair
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from scripts.results import parse, read, write
from studies.structured_answers.schemas import CASES, Case

RESULTS = Path(__file__).with_name("results") / "answers.json"
ANSWERS, TEMPERATURE, MAX_TOKENS = 50, 1.5, 160


def prompt_of(pair: Pair, case: Case) -> str:
    """Return the question, and the schema beneath it, by the model's chat template where it has one."""
    text = f"{case.ask} Answer in JSON of this schema: {json.dumps(case.schema)}"
    return as_chat_prompt(pair.tokenizer, text) if getattr(pair.tokenizer, "chat_template", None) else text


def ask(pair: Pair, case: Case, answers: int, proposals: int = 0) -> dict[str, Any]:
    """Return how many answers to a case are valid, and those that are not."""
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": case.schema}}
    validator = Draft202012Validator(case.schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    prompt, start = prompt_of(pair, case), time.perf_counter()
    counts = {"answers": answers, "valid": 0, "cut": 0, "tokens": 0, "steps": 0}
    wrong, different = list[str](), set[str]()
    for seed in range(answers):
        response = generate(
            pair, prompt, response_format=form, temperature=TEMPERATURE, seed=seed, max_new_tokens=MAX_TOKENS,
            num_speculative_tokens=proposals,
        )  # fmt: skip
        counts["tokens"] += len(response.token_ids)
        counts["steps"] += response.metrics.steps
        different.add(response.text)
        if response.finish_reason == "length":
            counts["cut"] += 1
            continue
        try:
            value = json.loads(response.text)
        except ValueError:
            wrong.append(response.text)
            continue
        if validator.is_valid(value):
            counts["valid"] += 1
        else:
            wrong.append(response.text)
    return counts | {
        "different": len(different), "wrong": wrong, "example": min(different, key=len),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def main() -> None:
    given = parse(
        __doc__, model=(Path, "a GGUF file of a chat model"), answers=(ANSWERS, "to each schema"), output=RESULTS
    )
    found: dict[str, Any] = read(given.output)["cases"] if given.output.exists() else {}
    pair = load_pair(str(given.model), "ngram")
    about = {"model": given.model.name, "answers": given.answers, "temperature": TEMPERATURE}
    for case in CASES:
        if case.name not in found:
            found[case.name] = ask(pair, case, given.answers)
            write(given.output, {"cases": found}, about)
        told = {name: found[case.name][name] for name in ("valid", "cut", "tokens", "seconds", "wrong", "example")}
        print(f"{case.name:40}", told, flush=True)


if __name__ == "__main__":
    main()
