"""Writes the tables of docs/conformance.md and of its long one: `python -m studies.conformance.page`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "conformance.md", ROOT / "docs" / "studies" / "tables" / "conformance.md"
RESULTS = ROOT / "docs" / "results" / "conformance"


def engines() -> str:
    rows = ["| engine | command | verdict | responses | deviation excluded | date |", "|---|---|---|--:|--:|---|"]
    for path in sorted(RESULTS.glob("engine_*.json")):
        result = json.loads(path.read_text())
        rows.append(_engine(result["report"], result["provenance"]))
    return "\n".join(rows)


def _engine(report: dict[str, Any], provenance: dict[str, Any]) -> str:
    given = provenance["arguments"]
    settings = "".join(
        f" --set {name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in given["set"].items()
    )
    command = f"cactus conform {given['engine']}{settings} --samples {given['samples']}"
    wrong = [f"{each['check']}: {each['said']}" for each in report["findings"] if each["right"] is False]
    verdict = "right" if report["right"] else "**wrong**: " + "; ".join(wrong)
    deviations = [each["deviation"] for each in report["findings"] if each["deviation"] is not None]
    span = f"{min(deviations):.2f} to {max(deviations):.2f}"
    date = provenance["date"][:10].replace("-", "\u2011")  # which does not break
    return f"| {report['engine']} | `{command}` | {verdict} | {report['samples']:,} | {span} | {date} |"


def mutants() -> str:
    rows = ["| mistake | responses | what the report says |", "|---|--:|---|"]
    for each in json.loads((RESULTS / "mutants.json").read_text())["mutants"]:
        rows.append(f"| {each['mistake'].rstrip('.')} | {each['samples']} | {each['said']} |")
    return "\n".join(rows)


def false_alarms() -> str:
    result = json.loads((RESULTS / "false_alarms.json").read_text())
    given = result["provenance"]["arguments"]
    return (
        f"At a level of {given['false_alarm']}, with {given['samples']} responses a check, {len(result['alarms'])} of "
        f"{result['runs']} runs over a right engine raised an alarm."
    )


def rendered(text: str) -> str:
    """Return a page with its tables written anew."""
    for make in (engines, mutants, false_alarms):
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
