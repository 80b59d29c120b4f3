"""A trace as one HTML page that needs no network and no server."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from pathlib import Path
from typing import Any
from unicodedata import category

from cactus_decoding.core.files.writing import page_templates
from cactus_decoding.core.policy.budget import Budget
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules.base import GreedyRule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.lab.tracing.file import to_json, tree_to_json
from cactus_decoding.lab.tracing.trace import Trace, TraceHeader

TRACE_PAGE = Path(__file__).parent / "page"
"""The folder of template, style and scripts; `SCRIPTS` and ``answer.css`` are a component for other pages too."""
SCRIPTS = ("writing.js", "tree.js", "pictures.js", "card.js", "answer.js")  # in the order in which they are loaded

_START = """
"use strict";
{
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const answer = new CactusAnswer(document.getElementById("answer"), trace.options);
  answer.append(trace.positions, trace.trees);
  answer.finish(trace.end);
}
"""


def trace_to_html(trace: Trace) -> str:
    script = "".join((TRACE_PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS) + _START
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        page_templates(TRACE_PAGE)
        .get_template("trace.html.jinja")
        .render(
            rule=str(trace.header.request.rule),
            prompt=trace.header.prompt,
            settings=shown_settings(trace.header),
            metrics=metrics_of(trace),
            finished=trace.finish_reason is not None,
            style=(TRACE_PAGE / "answer.css").read_text(encoding="utf-8"),
            script=script,
            script_digest=digest,
            data=script_json(_data(trace)),
            provenance=json.dumps(dict(trace.header.provenance), indent=2),
            printable=printable,
        )
    )


def printable(text: str) -> str:
    r"""Return text without what no page may hold; line ends, tabs and all kinds of spaces stay.

    >>> printable("a\x00\u3000b\r\n\tc")
    'a\ufffd\u3000b\n\tc'
    """
    kept = (
        letter if letter.isprintable() or letter in "\n\t" or category(letter) == "Zs" else "\ufffd"
        for letter in text.replace("\r\n", "\n")
    )
    return "".join(kept)


def script_json(value: Any) -> str:
    """Return JSON that can be put inside a script element: no tag can begin or end in it."""
    text = json.dumps(value, allow_nan=False)  # beyond ASCII everything is escaped, lone surrogates too
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _data(trace: Trace) -> dict[str, Any]:
    request = trace.header.request
    limit = None if request.budget is None or math.isinf(request.budget.limit) else request.budget.limit
    return {
        "options": {"rule": str(request.rule), "budget": limit, "label": "Answer"},
        "positions": [to_json(position) for position in trace.positions],
        "trees": {step.step: tree_to_json(step.tree) for step in trace.steps if step.tree},
        "end": {"text": trace.text, "finish_reason": trace.finish_reason, "metrics": trace.metrics.as_dict()},
    }


def shown_settings(header: TraceHeader) -> list[tuple[str, str]]:
    """Return the settings of the request, as names and values; defaults are left out."""
    request, default = header.request, Request()
    sampling = vars(request.sampling).items()
    truncation = [(name, value) for name, value in sampling if value != getattr(SamplingParams(), name)]
    settings = [
        ("rule", str(request.rule)),
        ("target", header.target),
        ("draft", header.draft),
        ("proposals per step", str(request.draft_length)),
        ("temperature", f"{request.sampling.temperature:g}"),
        *((name.replace("_", "-"), f"{value:g}") for name, value in truncation if name != "temperature"),
        *([("verification", request.verification)] if request.verification != default.verification else []),
        *([] if request.policy.everywhere else [("relaxing", str(request.policy))]),
        *_budget_of(request.budget),
        *([("stop", ", ".join(map(repr, request.stop)))] if request.stop else []),
        ("seed", str(request.seed)),
    ]
    return [(name, printable(value)) for name, value in settings]


def _budget_of(budget: Budget | None) -> list[tuple[str, str]]:
    if budget is None:
        return []
    if math.isinf(budget.limit):
        return [("budget", "measured, not limited")]
    text = f"{budget.limit:.4g} nats"
    text += f": no event moves by more than {budget.max_shift:g}" if budget.max_shift is not None else ""
    text += f", spread over {budget.expected_tokens} tokens" if budget.expected_tokens is not None else ""
    return [("budget", text)]


def metrics_of(trace: Trace) -> list[tuple[str, str, str]]:
    metrics = trace.metrics
    drafting = metrics.seconds - sum(step.verify_seconds + step.target_seconds for step in trace.steps)
    spent = sum(position.emitted_nats for position in trace.positions)
    greedy = isinstance(trace.header.request.rule, GreedyRule)
    fell_back = [("fell back", str(metrics.fell_back), "positions that the budget could not afford")]
    return [
        ("tokens", str(metrics.generated), f"ended by {trace.finish_reason or 'an interruption'}"),
        ("acceptance_length", _number(metrics.acceptance_length), "tokens per step: 1 + accepted / steps"),
        ("acceptance_rate", _number(metrics.acceptance_rate), "accepted / drafted"),
        ("steps", str(metrics.steps), f"plain decoding takes {metrics.generated}"),
        ("relaxed", str(metrics.relaxed), f"of {metrics.accepted} accepted tokens"),
        ("nats", f"{spent:.4f}", "of log-probability given up" if greedy else "spent in all: KL to the target"),
        *(fell_back if metrics.fell_back else []),
        ("seconds", f"{metrics.seconds:.2f}", f"of them {drafting:.2f} in drafting"),
    ]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"
