"""IFEval: instructions that programs can check, by lm-evaluation-harness's own checkers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cactus_decoding.core.checks import check_choice
from cactus_decoding.core.extras import needing
from cactus_decoding.core.files.jsonl import read_objects, text_of
from cactus_decoding.lab.evaluation.engines.engine import Problem
from cactus_decoding.lab.evaluation.tasks.task import Task

SCORES = ("strict", "loose")


@dataclass(frozen=True)
class IfEval:
    """IFEval from its published JSON Lines: right is an answer that follows all of its prompt's instructions.

    Objects with a ``key``, a ``prompt``, an ``instruction_id_list`` and ``kwargs``. That is lm-evaluation-harness's
    ``prompt_level_strict_acc``, or with ``score=loose`` its ``prompt_level_loose_acc``. Groups are kinds of
    instructions, ``several`` where there is more than one.

    Source: Zhou et al., arXiv 2311.07911.
    """

    path: str
    score: str = "strict"

    def __post_init__(self) -> None:
        check_choice("score", self.score, SCORES)

    def task(self, limit: int | None, *, chat: bool = False) -> Task:
        """Return the task."""
        checkers = Checkers(f"prompt_level_{self.score}_acc")
        return Task("ifeval", tuple(islice(self._problems(checkers), limit)), judge=checkers)

    def _problems(self, checkers: Checkers) -> Iterator[Problem]:
        for number, where, value in read_objects(self.path):
            prompt, kinds, given = (
                text_of(value, "prompt", where),
                value.get("instruction_id_list"),
                value.get("kwargs"),
            )
            if not isinstance(kinds, list) or not isinstance(given, list) or not 0 < len(kinds) == len(given):
                raise ValueError(f"{where}: 'instruction_id_list' and 'kwargs' must be lists of the same length")
            name = str(value.get("key", number))
            checkers.documents[name] = {"key": name, "prompt": prompt, "instruction_id_list": kinds, "kwargs": given}
            group = str(kinds[0]).partition(":")[0] if len(kinds) == 1 else "several"
            yield Problem(name, prompt, " ".join(map(str, kinds)), group)


@dataclass(frozen=True)
class Checkers:
    """Judges answers by a metric of the harness; ``documents`` are what it reads of each problem."""

    metric: str
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `ValueError` where what checks is not installed, or does not know an instruction."""
        known = _harness()[1]
        for name, document in self.documents.items():
            if unknown := [kind for kind in document["instruction_id_list"] if kind not in known]:
                raise ValueError(f"problem {name}: lm-evaluation-harness has no instruction {unknown[0]!r}")

    def __call__(self, problem: Problem, text: str) -> bool:
        """Say whether an answer follows all instructions."""
        return bool(_harness()[0](self.documents[problem.id], [text])[self.metric])


def _harness() -> tuple[Any, Any]:
    """Return the harness's own scoring, and the instructions that it knows."""
    with needing("IFEval is checked by lm-evaluation-harness", "ifeval"):
        import immutabledict  # noqa: F401
        import langdetect
        import nltk
    try:
        nltk.data.find("tokenizers/punkt_tab")
    except LookupError:  # importing the checkers would download it
        raise ValueError("IFEval counts sentences by data of NLTK: run python -m nltk.downloader punkt_tab") from None
    with needing("IFEval is checked by lm-evaluation-harness", "ifeval"):
        from lm_eval.tasks.ifeval.instructions_registry import INSTRUCTION_DICT
        from lm_eval.tasks.ifeval.utils import process_results
    langdetect.DetectorFactory.seed = 0  # otherwise the same answer is judged by chance
    return process_results, INSTRUCTION_DICT
