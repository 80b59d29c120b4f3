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


def last_match(pattern: str, text: str) -> str | None:
    """Return the last match's first group, or all of it if there are none; None too where searching takes too long."""
    return _asked({"pattern": pattern, "text": text}).get("found") or None


def follows(document: dict[str, Any], text: str, metric: str, data: list[str]) -> bool:
    """Return whether a metric of IFEval's says that a text is right; it is not where that cannot be told.

    ``document`` is what lm-evaluation-harness reads of the problem, and ``data`` are NLTK's folders.
    """
    return _asked({"document": document, "text": text, "metric": metric, "data": data}).get("right") is True


def problem_of(document: dict[str, Any], data: list[str]) -> str:
    """Return why no text could be judged; empty if one can."""
    return str(_asked({"document": document, "text": "", "metric": "", "data": data}).get("error", ""))


def _asked(message: dict[str, Any]) -> dict[str, Any]:
    try:
        return _worker().ask(message, JUDGING_SECONDS)
    except TimeoutError:
        return {"error": f"it takes longer than {JUDGING_SECONDS:g} seconds"}
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


def _work() -> None:
    """Answer lines of JSON from stdin: first an empty object, and then what is to be judged."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what is imported may print
    for number, line in enumerate(sys.stdin.buffer):
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, asked.get("seconds", 0))  # of processor time, then this process ends
        try:
            reply = _judged(asked) if number else {}
        except Exception as error:  # such as of JSON that nests too deeply
            reply = {"error": f"{type(error).__name__}: {error}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    _work()
