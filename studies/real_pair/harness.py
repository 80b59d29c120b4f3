"""Stored lossless answers scored by this package and by lm-evaluation-harness's own evaluator, one beside the other.

    python -m studies.real_pair.harness ANSWERS --task ifeval:path=ifeval.jsonl

ANSWERS are results of `studies.real_pair.ask`, or the journal of one that still runs. The harness is given the task
as it defines it, but that its documents are read from the local file and its model says what is stored. IFEval needs
NLTK's `punkt_tab`. HumanEval needs ``--allow-code-execution``, and a folder `code_eval` with the metric of that name
(github.com/huggingface/evaluate, metrics/code_eval) where the command runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cactus_decoding.cli.evaluation_table import check_may_run
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from scripts.results import parse, read, write
from studies.stored import read_results

RESULTS = Path(__file__).with_name("results") / "harness.json"
THEIRS = {
    "ifeval": ("ifeval/ifeval.yaml", "prompt_level_strict_acc", "key"),
    "gsm8k": ("gsm8k/gsm8k.yaml", "exact_match", "question"),
    "humaneval": ("humaneval/humaneval_instruct.yaml", "pass@1", "task_id"),
}
"""The harness's file of a task, its metric, and which field of a document tells it from others."""


def stored(file: Path) -> Iterator[tuple[str, str]]:
    """Yield problems' names and lossless answers."""
    if file.suffix == ".partial":
        for entry in map(json.loads, file.read_text().splitlines()):
            if '"rule": "lossless"' in entry["of"]:
                yield entry["row"]["id"], entry["row"]["text"]
    else:
        answers = read_results(file)[0].answers
        yield from zip(answers["id"], answers["text"], strict=True)


def theirs(task: str, documents: list[Mapping[str, Any]], texts: list[str], unsafe: bool) -> dict[str, list[bool]]:
    """Return what the harness says of each answer, by filter."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    definition, metric, field = THEIRS[task]
    text_of = {str(document[field]): text for document, text in zip(documents, texts, strict=True)}

    class Stored(LM):  # type: ignore[misc]
        """A model that says what is stored."""

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return [text_of[str(request.doc[field])] for request in requests]

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    with TemporaryDirectory() as folder:
        data = Path(folder) / "data.jsonl"
        data.write_text("".join(json.dumps(each) + "\n" for each in documents))
        local = {
            "include": str(Path(lm_eval.__file__).parent / "tasks" / definition),
            "task": f"stored_{task}",
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"train": str(data), "test": str(data)}, "cache_dir": folder},
        }
        (Path(folder) / "stored.yaml").write_text(json.dumps(local))
        found = lm_eval.simple_evaluate(
            Stored(), tasks=[f"stored_{task}"], num_fewshot=0, task_manager=TaskManager(include_path=folder),
            confirm_run_unsafe_code=unsafe, bootstrap_iters=0,
        )  # fmt: skip
    order = [str(document[field]) for document in documents]
    said: dict[str, dict[str, bool]] = {}
    for sample in found["samples"][f"stored_{task}"]:
        said.setdefault(sample["filter"], {})[str(sample["doc"][field])] = bool(sample[metric])
    return {name: [right[each] for each in order] for name, right in said.items()}


def main() -> None:
    """Score both ways, and add the task to the result file."""
    task = (None, {"required": True})
    given = parse(__doc__, answers=Path, task=task, count=40, allow_code_execution=False, results=RESULTS)
    task = parse_task(given.task, chat=True)
    check_may_run([task], given.allow_code_execution)
    if given.allow_code_execution:
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"
    source = Path(given.task.partition("path=")[2])
    with gzip.open(source, "rt") if source.suffix == ".gz" else source.open() as lines:
        documents = {each.id: json.loads(line) for each, line in zip(task.problems, lines, strict=False)}
    chosen = list(stored(given.answers))[: given.count]
    problems = {each.id: each for each in task.problems}
    told = theirs(task.name, [documents[name] for name, _ in chosen], [text for _, text in chosen],
                  given.allow_code_execution)  # fmt: skip
    entry = {
        "id": [name for name, _ in chosen],
        "sha256": [hashlib.sha256(text.encode()).hexdigest()[:16] for _, text in chosen],
        "ours": [task.is_right(problems[name], text) for name, text in chosen],
        "theirs": told,
        "provenance": provenance({"study": "real_pair.harness", "task": task.name, "answers": given.answers.name}),
    }
    for name, right in told.items():
        equal = sum(a == b for a, b in zip(entry["ours"], right, strict=True))
        print(f"{task.name}: ours {sum(entry['ours'])}, {name} {sum(right)} right of {len(chosen)}; equal {equal}")
    kept = read(given.results) if given.results.exists() else {}
    write(given.results, kept | {task.name: entry}, None)


if __name__ == "__main__":
    main()
