"""Thirty schemas, many answers each from a real model at a high temperature: is every answer valid?

    python -m studies.structured_answers.answers MODEL.gguf
    python -m studies.structured_answers.answers --only-render    the table, from the result file

Answers are kept as they come: the same command goes on where an interrupted one stopped. An answer that the limit of
tokens cuts is counted apart.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from cactus_decoding import generate, load_pair
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.pair import Pair
from scripts.pages import table
from scripts.results import asked, read, write
from studies.structured_answers.schemas import CASES, Case
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "answers.json"
TEMPERATURE, MAX_TOKENS = 1.5, 160


def prompt_of(pair: Pair, case: Case) -> str:
    """Return the question, and the schema beneath it, by the model's chat template where it has one."""
    text = f"{case.ask} Answer in JSON of this schema: {json.dumps(case.schema)}"
    return as_chat_prompt(pair.tokenizer, text) if getattr(pair.tokenizer, "chat_template", None) else text


def valid(validator: Draft202012Validator, text: str) -> bool:
    try:
        return bool(validator.is_valid(json.loads(text)))
    except ValueError:
        return False


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
        elif valid(validator, response.text):
            counts["valid"] += 1
        else:
            wrong.append(response.text)
    return counts | {
        "different": len(different), "wrong": wrong, "example": min(different, key=len),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def measure(given: Namespace) -> dict[str, Any]:
    """Ask for what the result file lacks."""
    found: dict[str, Any] = read(given.results)["cases"] if given.results.exists() else {}
    pair = load_pair(str(given.model), "ngram")
    for case in CASES:
        if case.name not in found:
            found[case.name] = ask(pair, case, given.answers)
            write(given.results, {"cases": found}, asked(given))
        print(f"{case.name:40}", found[case.name], flush=True)
    return {"cases": found, "temperature": TEMPERATURE}


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    """Return how many answers to each schema are valid."""
    found, names = result["cases"], ("answers", "different", "valid", "cut")
    rows: list[list[object]] = [
        [f"[{case.name}]({case.report})", *(each[name] for name in names), f"`{each['example']}`"]
        for case in CASES
        if (each := found.get(case.name))
    ]
    rows.append(["**all**", *(sum(each[name] for each in found.values()) for name in names), ""])
    return {"answers": table(["schema", "answers", "different", "valid", "cut by length", "the shortest"], rows)}


if __name__ == "__main__":
    study(
        __doc__, RESULTS, "studies/structured_answers.md", measure, shown, needed=["model"],
        model=(None, "a GGUF file of a chat model", {"type": Path, "positional": True, "nargs": "?"}),
        answers=(50, "to each schema"),
    )  # fmt: skip
