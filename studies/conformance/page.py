"""Writes the tables about conformance from docs/results/conformance/: `python -m studies.conformance.page`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "conformance.md", ROOT / "docs" / "studies" / "tables" / "conformance.md"
RESULTS = ROOT / "docs" / "results" / "conformance"


SERVERS = {
    "engine_server_cactus": "`cactus serve`",
    "engine_server_llama_plain": "llama.cpp 0c1e570, server",
    "engine_server_llama_draft": "llama.cpp 0c1e570, server, `-md bad.gguf --spec-type draft-simple "
    "--spec-draft-n-max 3`",
    "engine_server_llama_ngram": "llama.cpp 0c1e570, server, `--spec-type ngram-simple --spec-ngram-simple-size-n 1 "
    "--spec-ngram-simple-size-m 3`",
}
"""What was behind an address."""


def engines() -> str:
    rows = ["| engine | verdict | deviation excluded |", "|---|---|--:|"]
    rows += [f"| {server} | {_verdict(report)} | {_excluded(report)} |" for server, report, _ in _measured()]
    return "\n".join(rows)


def commands() -> str:
    rows = ["| engine | command | responses | date |", "|---|---|--:|---|"]
    for server, report, provenance in _measured():
        date = provenance["date"][:10].replace("-", "\u2011")  # which does not break
        rows.append(f"| {server} | `{_command(provenance['arguments'])}` | {report['samples']:,} | {date} |")
    return "\n".join(rows)


def _measured() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for path in sorted(RESULTS.glob("engine_*.json")):
        result = json.loads(path.read_text())
        drafts = result["provenance"]["arguments"]["set"].get("drafts")
        name = result["report"]["engine"] + (f", {drafts} draft" if drafts else "")
        yield SERVERS.get(path.stem, name), result["report"], result["provenance"]


def _command(given: dict[str, Any]) -> str:
    settings = "".join(
        f" --set {name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in given["set"].items()
    )
    return f"cactus conform {given['engine']}{settings} --samples {given['samples']}"


def _verdict(report: dict[str, Any]) -> str:
    wrong = [each for each in report["findings"] if each["right"] is False]
    said = next((name for name, _ in Counter(each["said"].partition(" (")[0] for each in wrong).most_common(1)), "")
    where = wrong[0]["check"] if len(wrong) == 1 else f"{len(wrong)} of {len(report['findings'])} checks, mostly"
    return "right" if report["right"] else f"**wrong**: {where}: {said}"


def _excluded(report: dict[str, Any]) -> str:
    deviations = [each["deviation"] or 0 for each in report["findings"]]
    return f"{min(filter(None, deviations)):.2f} to {max(deviations):.2f}" if any(deviations) else ""


def mutants() -> str:
    rows = ["| mistake | responses | what the report says |", "|---|--:|---|"]
    for each in json.loads((RESULTS / "mutants.json").read_text())["mutants"]:
        rows.append(f"| {each['mistake'].rstrip('.')} | {each['samples']} | {each['said']} |")
    return "\n".join(rows)


def caught() -> str:
    found = json.loads((RESULTS / "mutants.json").read_text())["mutants"]
    taken = sorted(each["samples"] for each in found if each["caught"])
    return (
        f"Of {len(found)} it catches {len(taken)}, half of them within {taken[len(taken) // 2]} responses of the check "
        f"that does, all within {taken[-1]}."
    )


def false_alarms() -> str:
    result = json.loads((RESULTS / "false_alarms.json").read_text())
    given = result["provenance"]["arguments"]
    return (
        f"At a level of {given['false_alarm']}, with {given['samples']} responses a check, {len(result['alarms'])} of "
        f"{result['runs']} runs over a right engine raised an alarm."
    )


def rendered(text: str) -> str:
    """Return a page with its tables written anew."""
    for make in (engines, commands, mutants, caught, false_alarms):
        name = make.__name__
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)",
            lambda found, make=make: f"{found[1]}\n{make()}\n\n{found[2]}",
            text,
            flags=re.DOTALL,
        )
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
