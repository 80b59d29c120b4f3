"""Writes the tables about conformance from docs/results/conformance/: `python -m studies.conformance.page`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cactus_conform.models import PROMPTS
from cactus_conform.suite import SAMPLES
from cactus_conform.truth import Truth, Wanted

from scripts.pages import ROOT, columns, put, table
from scripts.results import parse, read
from studies.conformance.published_acceptance import table as published_acceptance
from studies.conformance.tokens import FILES, PENALTIES, RESULTS

PAGES = ROOT / "docs" / "conformance.md", ROOT / "docs" / "studies" / "tables" / "conformance.md"
LLAMA = "llama-server -m tiny/target.gguf -c 64 -np 1 -ctk f32 -ctv f32 -fa off --top-k 0 --top-p 1 --min-p 0 --port {}"
SERVERS = {
    "engine_server_cactus": (
        "`cactus serve`",
        "cactus serve --engine llama-cpp tiny/target.gguf:cache=float32 --draft tiny/bad.gguf:cache=float32 "
        "--num-speculative-tokens 3 --port 18804",
    ),
    "engine_server_llama_plain": ("llama.cpp 0c1e570, server", LLAMA.format(18801)),
    "engine_server_llama_draft": (
        "llama.cpp 0c1e570, server, draft model",
        LLAMA.format(18802) + " -md tiny/bad.gguf --spec-type draft-simple --spec-draft-n-max 3 -ctkd f32 -ctvd f32",
    ),
    "engine_server_llama_ngram": (
        "llama.cpp 0c1e570, server, n-gram",
        LLAMA.format(18803) + " --spec-type ngram-simple --spec-ngram-simple-size-n 1 --spec-ngram-simple-size-m 3",
    ),
}
"""What was behind an address, and how it was started."""


def measured(kind: str = "engine") -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Return each report with the engine's name before it, how it was started, and after it where it comes from."""
    found = []
    for path in sorted(RESULTS.glob(f"{kind}_*.json")):
        result = read(path)
        drafts = result["provenance"]["arguments"]["set"].get("drafts")
        engine = result["report"]["engine"].replace(", method=eagle, model=tiny/eagle", "")
        engine = re.sub(r"^vLLM [\d.]+", r"\g<0> CPU", engine)  # no other was measured
        name = engine + (f": {drafts}" if drafts else "")
        started = SERVERS.get(path.stem.replace(kind, "engine"), (name, ""))
        found.append((*started, result["report"], result["provenance"]))
    return found


def engines() -> str:
    alike: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for name, _, report, provenance in measured():
        samples = provenance["arguments"]["samples"]
        engine, _, draft = name.partition(": ")
        said = engine if samples == SAMPLES else f"{engine}, {samples} samples"
        alike.setdefault((said, _verdict(report)), {})[draft] = report
    rows = [
        [": ".join(filter(None, (engine, ", ".join(filter(None, reports))))), verdict, _excluded(*reports.values())]
        for (engine, verdict), reports in alike.items()
    ]
    return table(("engine: drafts", "verdict", "excluded"), rows, names=2)


def commands() -> str:
    return columns(measured(), {
        "engine": "{0}", "command": _command, "responses": "{2[samples]:,}", "excluded": lambda one: _excluded(one[2]),
        "seconds": _seconds, "date": _date,
    }, names=2, notes=1)  # fmt: skip


def gates() -> str:
    """Show what `--gate` said of each engine."""
    return columns(measured("gate"), {
        "engine": "{0}", "gate": _gate, "responses": "{2[samples]:,}", "excluded": lambda one: _excluded(one[2]),
        "seconds": "{2[seconds]:.0f}", "date": _date,
    }, names=2)  # fmt: skip


def _date(one: tuple[Any, ...]) -> str:
    return str(one[3]["date"][:10].replace("-", "\u2011"))  # which does not break


def _seconds(one: tuple[Any, ...]) -> str:
    """Say how long a run took, and with newer results how long the processor was its own."""
    own = one[2].get("processor_seconds")
    return f"{one[2]['seconds']:.0f}" + (f" ({own:.0f})" if own else "")


def _command(one: tuple[Any, ...]) -> str:
    _, start, _, provenance = one
    given = provenance["arguments"]
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given["set"].items()}
    settings = "".join(f" --set {name}={value}" for name, value in values.items())
    command = f"`cactus conform {given['engine']}{settings} --samples {given['samples']}`"
    return command + (f", of `{start}`" if start else "")


def _wrong(report: dict[str, Any]) -> list[str]:
    return [each["said"].partition(" (")[0] for each in report["findings"] if each["right"] is False]


def _gate(one: tuple[Any, ...]) -> str:
    report = one[2]
    return "pass" if report["right"] else f"**fail**: {report['failure'] or next(iter(_wrong(report)), '')}"


def _verdict(report: dict[str, Any]) -> str:
    wrong = _wrong(report)
    several = f"{len(wrong)} of {len(report['findings'])} checks"
    return f"**wrong**: {several if len(wrong) > 1 else wrong[0]}" if wrong else "right"


def _excluded(*reports: dict[str, Any]) -> str:
    deviations = [each["deviation"] for report in reports for each in report["findings"] if each["deviation"]]
    return f"{min(deviations):.2f}–{max(deviations):.2f}" if deviations else ""


def acceptance() -> str:
    rows = [
        [name, draft, *(f"{number:.3f}" for number in numbers)]
        for name, _, report, _ in measured()
        for draft, numbers in report["acceptance"].items()
    ]
    return table(("engine", "draft", "accepted", "possible", "standard error of the difference"), rows, names=2)


def second_token() -> str:
    found = read(FILES["second"])
    given = found["provenance"]["arguments"]
    return (
        f"Prompt 1 2 3, draft model `{given['draft']}`, 3 proposals, temperature {given['temperature']}, "
        f"{given['samples']:,} seeds: token {found['first']} came first {found['times']:,} times, and next\n\n"
        + _laws("token", found["laws"])
    )


def _laws(what: str, laws: Mapping[str, Sequence[float]]) -> str:
    head = [what, *range(len(next(iter(laws.values()))))]
    return table(head, ([name, *(f"{each:.3f}" for each in law)] for name, law in laws.items()))


def penalties() -> str:
    """Show what counting the prompt does to the first token: penalties of the output alone leave it as it is."""
    found, prompt = read(FILES["first"]), PROMPTS[0]
    names = {"expected": len(prompt), "with the prompt counted": 0}
    laws = Truth().next_rows([Wanted("target", prompt, start, PENALTIES) for start in names.values()])
    seen = f"seen, {found['provenance']['arguments']['samples']:,} seeds"
    return _laws("first token", {**dict(zip(names, laws, strict=True)), seen: found["seen"]})


def _mutants(few: str = "") -> list[dict[str, Any]]:
    return read(RESULTS / f"mutants{few}.json")["mutants"]  # type: ignore[no-any-return]


def mutants() -> str:
    return columns(_mutants(), {
        "mistake": lambda one: f"`{one['name']}`: {one['mistake'].rstrip('.')}", "responses": "{samples}",
        "what the report says": "{said}",
    }, notes=1)  # fmt: skip


def caught() -> str:
    found = _mutants()
    taken = sorted(each["samples"] for each in found if each["caught"])
    missed = [each["name"] for each in _mutants("_25") if not each["caught"]]
    return (
        f"It catches {len(taken)} of {len(found)}: half of them within {taken[len(taken) // 2]} responses to the check "
        f"that finds them, all within {taken[-1]}. With `--samples 25` it misses {', '.join(missed)}."
    )


def false_alarms() -> str:
    result = read(RESULTS / "false_alarms.json")
    return (
        f"At `--false-alarm {result['settings']['false_alarm']}`, with {result['settings']['samples']} responses per "
        f"check, {len(result['alarms'])} of {result['runs']} runs over a right engine raised an alarm."
    )


def two_servers() -> str:
    found = read(RESULTS / "two_servers.json")["comparison"]
    prompts, differ, _ = found["greedy"]
    agree = f"agree; a difference above {found['excluded'] or 0:.2f} in total variation is excluded"
    return (
        f"For example, `cactus serve` with SmolLM2, with looked-up proposals and without: {found['pairs']} pairs of "
        f"texts {'differ' if found['excluded'] is None else agree}. At temperature 0, {differ} of {prompts} texts "
        "differ ([command](studies/tables/conformance.md#two-servers))."
    )


TABLES = {
    PAGES[0]: {"engines": engines, "caught": caught, "false_alarms": false_alarms, "two_servers": two_servers},
    PAGES[1]: {
        "commands": commands, "gates": gates, "acceptance": acceptance, "second_token": second_token,
        "penalties": penalties, "mutants": mutants, "published_acceptance": published_acceptance,
    },
}  # fmt: skip


if __name__ == "__main__":
    parse(__doc__)
    for page, made in TABLES.items():
        put(page, {name: make() for name, make in made.items()})
