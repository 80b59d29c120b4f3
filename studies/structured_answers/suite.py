"""JSON Schema's own test suite, draft 2020-12: what constraints let through, and what they refuse by name.

    git clone https://github.com/json-schema-org/JSON-Schema-Test-Suite FOLDER
    python -m studies.structured_answers.suite FOLDER           under a minute
    python -m studies.structured_answers.suite --only-render    the tables, from the result file

The required part is examined, and of the optional one the values of ``format``, each of which counts as a keyword.
Each test of the suite is a schema with instances that are valid or invalid. An instance is written as Python's
`json.dumps` writes it, with its properties in every order, because answers come in the schema's. Answers are generated
at random too, from single bytes, and checked by the library `jsonschema`.
"""

from __future__ import annotations

import json
import math
import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

import torch
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from cactus_decoding.core.constraints.base import ConstraintError, schema_grammar
from cactus_decoding.core.constraints.compiling import CompilerVocabulary
from cactus_decoding.core.constraints.matching import GrammarConstraint, GrammarVocabulary
from scripts.pages import table
from studies.study import study

REQUIRED, FORMATS = "tests/draft2020-12", "tests/draft2020-12/optional/format"
RESULTS = Path(__file__).with_name("results") / "suite.json.gz"
END = 256
ORDERS = 24
ANSWERS, LONGEST = 8, 120
"""Generated for each schema, and of how many bytes at most."""
COUNTS = {
    "valid accepted": "valid, accepted", "valid rejected": "valid, rejected", "invalid excluded": "invalid, excluded",
    "invalid accepted": "invalid, accepted", "refused": "in refused schemas", "generated": "generated, checked",
    "wrong": "of these wrong",
}  # fmt: skip
"""What is counted, and how the tables call it."""


@cache
def byte_vocabulary() -> GrammarVocabulary:
    """Return a vocabulary of single bytes and an end token."""
    tokens = [*(bytes([i]) for i in range(256)), b"</s>"]
    return GrammarVocabulary(CompilerVocabulary(tokens, [], [END]).llguidance(), END + 1, [END])


def spellings(value: Any) -> Iterator[str]:
    """Return how a value may be written: as `json.dumps` does, its properties in every order."""
    if isinstance(value, dict):
        names = [json.dumps(name, ensure_ascii=False) for name in value]
        inner = [list(islice(spellings(each), ORDERS)) for each in value.values()]
        for order in islice(permutations(range(len(names))), ORDERS):
            for parts in product(*(inner[i] for i in order)):
                yield "{" + ", ".join(f"{names[i]}: {part}" for i, part in zip(order, parts, strict=True)) + "}"
    elif isinstance(value, list):
        for parts in product(*(list(islice(spellings(each), ORDERS)) for each in value)):
            yield "[" + ", ".join(parts) + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)


def accepts(constraint: GrammarConstraint, text: str) -> bool:
    """Whether a text is one that the constraint allows, to its end."""
    try:
        ids = list(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which no answer has
        return False
    allowed = constraint.allowed(ids)
    return allowed is not None and bool(allowed[END])


def answers(constraint: GrammarConstraint, seed: int) -> Iterator[str]:
    """Write answers at random; those that do not end, or cannot go on, are left out."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(ANSWERS):
        ids = list[int]()
        while len(ids) < LONGEST:
            try:
                allowed = constraint.allowed(ids)
            except ConstraintError:
                break
            assert allowed is not None
            logits = torch.randn(END + 1, generator=generator)
            logits[[*b'"}],', END]] += 2  # so that most come to an end
            token = int(torch.multinomial(logits.masked_fill(~allowed, -math.inf).softmax(-1), 1, generator=generator))
            if token == END:
                yield bytes(ids).decode()
                break
            ids.append(token)


def valid(schema: Any, text: str) -> bool | None:
    """Whether `jsonschema` finds an answer valid; None where it cannot read a pattern, as one with ``\\p{Letter}``."""
    try:
        Draft202012Validator(schema).validate(json.loads(text))
    except (ValidationError, ValueError):
        return False
    except re.error:
        return None
    return True


def examine(schema: Any, tests: list[dict[str, Any]]) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Count how a schema's instances fare; return also each that is not as the suite says."""
    counts, notes = Counter[str](), list[dict[str, Any]]()
    try:
        constraint = byte_vocabulary().constraint(schema_grammar("the schema", schema))
    except ValueError as error:
        return Counter({"refused": len(tests)}), [{"refused": str(error).removeprefix("cannot read the schema: ")}]
    for test in tests:
        accepted = any(accepts(constraint, text) for text in spellings(test["data"]))
        rejected = "rejected" if test["valid"] else "excluded"
        outcome = f"{'valid' if test['valid'] else 'invalid'} {'accepted' if accepted else rejected}"
        counts[outcome] += 1
        if accepted != test["valid"]:
            notes.append({"outcome": outcome, "instance": test["data"], "says": test["description"]})
    for text in answers(constraint, seed=len(tests)):
        fine = valid(schema, text)
        counts["generated"] += fine is not None
        if fine is False:
            counts["wrong"] += 1
            notes.append({"outcome": "wrong", "answer": text})
    return counts, notes


def measure(given: Namespace) -> dict[str, Any]:
    """Examine every schema; return counts by part and keyword, and what is to be told of single instances."""
    parts, listed = dict[str, dict[str, dict[str, int]]](), list[dict[str, Any]]()
    for part in (REQUIRED, FORMATS):
        parts[part] = {}
        for path in sorted((given.folder / part).glob("*.json")):
            counted = Counter[str]()
            for case in json.loads(path.read_text()):
                counts, notes = examine(case["schema"], case["tests"])
                counted += counts
                listed += [{"part": part, "keyword": path.stem, "schema": case["description"]} | n for n in notes]
            parts[part][path.stem] = {each: counted[each] for each in COUNTS}
    return {"parts": parts, "notes": listed, "answers": ANSWERS, "longest": LONGEST}


def keywords_table(keywords: Mapping[str, Mapping[str, int]]) -> str:
    """Return how each keyword fared, and all of them together."""
    total = {each: sum(counts[each] for counts in keywords.values()) for each in COUNTS}
    rows = [[name, *(counts[each] for each in COUNTS)] for name, counts in [*keywords.items(), ("**all**", total)]]
    return table(["file of the suite", *COUNTS.values()], rows)


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    """Return both parts' tables, and the valid values that are not allowed."""
    rejected = [
        [note["keyword"], f"`{json.dumps(note['instance'])}`", note["says"]]
        for note in result["notes"]
        if note.get("outcome") == "valid rejected" and note["part"] == REQUIRED
    ]
    return {
        "suite": keywords_table(result["parts"][REQUIRED]),
        "formats": keywords_table(result["parts"][FORMATS]),
        "rejected": table(["file", "value", "why the suite calls it valid"], rejected, names=3),
    }


if __name__ == "__main__":
    folder = (None, "a checkout of JSON-Schema-Test-Suite", {"type": Path, "positional": True, "nargs": "?"})
    study(__doc__, RESULTS, "studies/structured_answers.md", measure, shown, needed=["folder"], folder=folder)
