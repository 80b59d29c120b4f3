"""Stored lossless answers scored by this package and by lm-evaluation-harness's own evaluator, one beside the other.

    python -m studies.real_pair.harness ANSWERS --task ifeval:path=ifeval.jsonl

ANSWERS are results of `cactus eval`. The harness is given the task as it defines it, but that its documents are read
from the local file and its model says what is stored. IFEval needs NLTK's `punkt_tab`. HumanEval needs
``--allow-code-execution``, and a folder `code_eval` with the metric of that name (github.com/huggingface/evaluate,
metrics/code_eval) where the command runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cactus_decoding.cli.evaluation_table import check_may_run
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.lab.evaluation.tasks.sources import file_of, parse_task
from scripts.results import parse, read, write
from studies.stored import read_results

RESULTS = Path(__file__).with_name("results") / "harness.json"
THEIRS = {
    "ifeval": ("ifeval/ifeval.yaml", "prompt_level_strict_acc"),
    "gsm8k": ("gsm8k/gsm8k.yaml", "exact_match"),
    "humaneval": ("humaneval/humaneval_instruct.yaml", "pass@1"),
}
"""The harness's file of a task, and its metric."""


def theirs(task: str, documents: str, texts: Sequence[str], unsafe: bool) -> dict[str, list[bool]]:
    """Return what the harness says of the answers to documents, which are lines, by filter."""
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Stored(LM):  # type: ignore[misc]
        """A model that says what is stored."""

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return [texts[request.doc_id] for request in requests]

        def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    definition, metric = THEIRS[task]
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data.jsonl"
        data.write_text(documents)
        files = {"data_files": {"train": str(data), "test": str(data)}, "cache_dir": folder}
        local = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": files, "task": "stored"}
        local["include"] = str(Path(lm_eval.__file__).parent / "tasks" / definition)
        (Path(folder) / "stored.yaml").write_text(json.dumps(local))
        found = lm_eval.simple_evaluate(
            Stored(), tasks=["stored"], num_fewshot=0, task_manager=TaskManager(include_path=folder),
            confirm_run_unsafe_code=unsafe, bootstrap_iters=0,
        )  # fmt: skip
    said: dict[str, dict[int, bool]] = {}
    for sample in found["samples"]["stored"]:
        said.setdefault(sample["filter"], {})[sample["doc_id"]] = bool(sample[metric])
    return {name: [right[place] for place in range(len(texts))] for name, right in said.items()}


def main() -> None:
    """Score both ways, and add the task to the result file."""
    must = (None, {"required": True})
    given = parse(__doc__, answers=Path, task=must, count=40, allow_code_execution=False, results=RESULTS)
    task, source, unsafe = parse_task(given.task, chat=True), file_of(given.task), given.allow_code_execution
    check_may_run([task], unsafe)
    if unsafe:
        os.environ["HF_ALLOW_CODE_EVAL"] = "1"
    if source is None:
        raise SystemExit(f"task {given.task!r} names no file of documents")
    data = source.read_bytes()
    lines = (gzip.decompress(data) if source.suffix == ".gz" else data).decode().splitlines(keepends=True)
    documents = {each.id: (each, line) for each, line in zip(task.problems, lines, strict=False)}
    answers = next(each.answers for each in read_results(given.answers) if each.config.rule == "lossless")
    names, texts = answers["id"][: given.count], answers["text"][: given.count]
    told = theirs(task.name, "".join(documents[name][1] for name in names), texts, unsafe)
    ours = [task.is_right(documents[name][0], text) for name, text in zip(names, texts, strict=True)]
    for name, right in told.items():
        equal = sum(a == b for a, b in zip(ours, right, strict=True))
        print(f"{task.name}: ours {sum(map(bool, ours))}, {name} {sum(right)} right of {len(names)}; equal {equal}")
    entry = {
        "id": names, "sha256": [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts], "ours": ours,
        "theirs": told,
        "provenance": provenance({"study": "real_pair.harness", "task": task.name, "answers": given.answers.name}),
    }  # fmt: skip
    write(given.results, (read(given.results) if given.results.exists() else {}) | {task.name: entry}, None)


if __name__ == "__main__":
    main()
