"""Judges what models write by patterns and checkers that may never end on it: in a process of its own, with a limit.

That process runs this file itself.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import sys
from collections import deque
from functools import cache
from typing import Any

from cactus_decoding.core.worker import WorkerProcess

JUDGING_SECONDS = 60.0
"""How much processor time a judgement may take, the first one including the import of what judges."""
MATH_SECONDS = 5.0
"""The same of an expression."""


def last_match(pattern: str, text: str) -> str | None:
    """Return the last match's first group, or all of it if there are none; None too where searching takes too long."""
    return _asked({"pattern": pattern, "text": text}).get("found") or None


def value_of(latex: str) -> str | None:
    """Return the value of a LaTeX expression if it is a rational number; None too where working it out takes long."""
    return _asked({"latex": latex}, MATH_SECONDS).get("value")


def same_value(answer: str, text: str) -> bool:
    """Return whether math-verify finds in a text the value of an answer; it does not where that cannot be told."""
    return _asked({"answer": answer, "text": text}, MATH_SECONDS).get("right") is True


def follows(document: dict[str, Any], text: str, metric: str, data: list[str]) -> bool:
    """Return whether a metric of IFEval's says that a text is right; it is not where that cannot be told.

    ``document`` is what lm-evaluation-harness reads of the problem, and ``data`` are NLTK's folders.
    """
    return _asked({"document": document, "text": text, "metric": metric, "data": data}).get("right") is True


def problem_of(document: dict[str, Any], data: list[str]) -> str:
    """Return why no text could be judged; empty if one can."""
    return str(_asked({"document": document, "text": "", "metric": "", "data": data}).get("error", ""))


def _asked(message: dict[str, Any], seconds: float | None = None) -> dict[str, Any]:
    seconds = seconds or JUDGING_SECONDS
    try:
        return _worker().ask(message, seconds)
    except TimeoutError:
        return {"error": f"it takes longer than {seconds:g} seconds"}
    except ChildProcessError:
        return {"error": "the process that judges has ended"}


@cache
def _worker() -> WorkerProcess:
    made = WorkerProcess(__file__, b"{}", "judges answers")
    atexit.register(made.close)
    return made


def _judged(asked: dict[str, Any]) -> dict[str, Any]:
    if "pattern" in asked:
        last = deque(re.finditer(asked["pattern"], asked["text"]), maxlen=1)
        return {"found": (last[0].groups() or (last[0][0],))[0]} if last else {}
    if "metric" not in asked:
        return _worked_out(asked)
    import langdetect
    import nltk

    nltk.data.path[:] = asked["data"]  # before the harness is imported, which would download what it does not find
    langdetect.DetectorFactory.seed = 0  # otherwise the same answer is judged by chance
    from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT
    from lm_eval.tasks.ifeval.utils import process_results

    document = asked["document"]
    if unknown := [kind for kind in document["instruction_id_list"] if kind not in INSTRUCTION_DICT]:
        return {"error": f"lm-evaluation-harness has no instruction {unknown[0]!r}"}
    return {"right": bool(process_results(document, [asked["text"]]).get(asked["metric"]))}


def _worked_out(asked: dict[str, Any]) -> dict[str, Any]:
    from math_verify import parse, verify

    def parsed(text: str) -> Any:
        return parse(text, parsing_timeout=None)  # this process has a limit of its own

    if "latex" not in asked:
        answer = asked["answer"]
        gold = parsed(answer if "$" in answer or "\\boxed" in answer else rf"\boxed{{{answer}}}")
        return {"right": bool(gold) and verify(gold, parsed(asked["text"]), timeout_seconds=None)}
    import sympy

    found = parsed(rf"\boxed{{{asked['latex']}}}")
    value = sympy.nsimplify(found[0].doit(), rational=True) if found and isinstance(found[0], sympy.Expr) else None
    return {"value": str(value)} if isinstance(value, sympy.Rational) else {}


def _imported(asked: dict[str, Any]) -> None:
    """Import what works expressions out, which may take longer than an expression may."""
    if "latex" in asked or "answer" in asked:
        signal.setitimer(signal.ITIMER_PROF, JUDGING_SECONDS)
        import math_verify  # noqa: F401
        import sympy  # noqa: F401


def _work() -> None:
    """Answer lines of JSON from stdin: first an empty object, and then what is to be judged."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is imported may print
    for number, line in enumerate(sys.stdin.buffer):
        asked = json.loads(line)
        try:
            _imported(asked)
            signal.setitimer(signal.ITIMER_PROF, asked.get("seconds", 0))  # of processor time, then this process ends
            reply = _judged(asked) if number else {}
        except Exception as error:  # such as of JSON that nests too deeply
            reply = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    _work()
