"""What cheap drafts cost and bring on a real pair of GGUF files, beside the draft as it came and look-up.

    python -m studies.training.cheap_drafts ANSWERS --target T.gguf --draft "0.5B=D.gguf" --draft "2 layers=E.gguf"
        --task gsm8k:path=gsm8k_test.jsonl --task humaneval:path=HumanEval.jsonl
    python -m studies.training.run --only-render

ANSWERS is the folder of `studies.real_pair.collect`: the target's own answers in chat with its rows, of which an answer
file keeps all but a thousandth. Drafts are read along them: a position's acceptance is the sum of min(p, q), a step's
tokens follow from that (`steps_taken`), and of look-up from what it really proposes there. Tokens per second are
arithmetic on these and on passes timed by the processor's clock, on one thread, so that other programs' load does not
count as much.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cactus_decoding.core.drafting.lookup import SuffixDrafter
from cactus_decoding.core.drafting.measuring import time_passes
from cactus_decoding.engines.llama_cpp.models.model import LlamaCppModel
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile, parse_gguf
from cactus_decoding.lab.evaluation.chat import Chat, tokenizer_of
from cactus_decoding.lab.evaluation.score import steps_taken
from cactus_decoding.lab.evaluation.tasks.sources import parse_task
from cactus_decoding.lab.evaluation.tasks.task import in_chat
from scripts.pages import table as as_table
from scripts.results import parse, read, write
from studies.real_pair.answers import Answers, read_answers

RESULT = Path("studies/training/results/cheap_drafts.json")
LENGTHS, ROUNDS, CONTEXT = range(8), 3, 1024


def acceptance(model: LlamaCppModel, prompt: Sequence[int], answers: Answers, number: int) -> Tensor:
    """Return the chance that lossless verification keeps a draft's proposal, at each position of an answer."""
    here = answers.problem == number
    written, counts = answers.written[here].tolist(), answers.counts[here].tolist()
    start = int(answers.counts[answers.problem < number].sum())
    kept = zip(
        *(each[start : start + sum(counts)].split(counts) for each in (answers.token_ids, answers.target)), strict=True
    )
    model.reset()
    rows = model.append([*prompt, *written[:-1]], len(written))
    found = [
        torch.minimum(row.double().softmax(-1)[ids.long()], target.double()).sum()
        for row, (ids, target) in zip(rows, kept, strict=True)
    ]
    return torch.stack(found)


def looked_up(prompt: Sequence[int], answer: Sequence[int], limit: int) -> int:
    """Return how many steps an answer takes whose proposals are looked up."""
    drafter, steps, place = SuffixDrafter(), 0, 0
    while place < len(answer):
        ids = [*prompt, *answer[:place]]
        found = drafter.propose(ids, limit, lambda logits, _: logits, None).token_ids if limit else []
        kept = next((i for i, token in enumerate(found) if [token] != answer[place + i : place + i + 1]), len(found))
        place, steps = place + kept + 1, steps + 1
    return steps


def measure(given: Namespace) -> None:
    """Write the result file, again after each task."""
    tokenizer = tokenizer_of(given.target)
    problems = {
        spelled.partition(":")[0]: in_chat(parse_task(spelled, chat=True), tokenizer, Chat()).problems
        for spelled in given.task
    }
    answers = read_answers(given.answers, list(problems))
    named = [("target", given.target), *(each.split("=", 1) for each in given.draft)]
    files = {label: file for label, path in named if (file := parse_gguf(path)) is not None}
    models = {label: load(file) for label, file in files.items()}
    widths = {"target": (models.pop("target"), [k + 1 for k in LENGTHS])} | {
        label: (model, [1]) for label, model in models.items()
    }
    seconds = {name: time_passes(model, each, time.process_time, ROUNDS) for name, (model, each) in widths.items()}
    print(seconds, flush=True)
    sizes = {label: files[label].path.stat().st_size for label in models}
    about = {"target": files["target"].path.name, "bytes": sizes, "threads": 1, "rounds": ROUNDS} | given.about
    collected = read(given.answers / "collected.json")
    content: dict[str, Any] = {"answers": collected, "seconds": seconds, "tasks": {}}
    for name in problems:
        places = [i for i, each in enumerate(answers.about) if each["task"] == name][: given.problems]
        chances: dict[str, list[Tensor]] = {label: [] for label in models}
        steps, positions = [0 for _ in LENGTHS], 0
        for i in places:
            prompt = tokenizer(problems[name][answers.about[i]["place"]].prompt).input_ids
            written = answers.written[answers.problem == i].tolist()
            for label, model in models.items():
                chances[label].append(acceptance(model, prompt, answers, i))
            steps = [taken + looked_up(prompt, written, k) for k, taken in zip(LENGTHS, steps, strict=True)]
            positions += len(written)
            print(name, i, {label: round(float(each[-1].mean()), 3) for label, each in chances.items()}, flush=True)
        told: dict[str, Any] = {"answers": len(places), "positions": positions, "drafts": {}}
        told["look-up"] = {"steps": steps}
        for label, each in chances.items():
            group, every = torch.cat([torch.full((len(one),), i) for i, one in enumerate(each)]), torch.cat(each)
            taken = [float(steps_taken(every, group, k).sum()) if k else float(len(every)) for k in LENGTHS]
            told["drafts"][label] = {"acceptance": float(every.mean()), "steps": taken}
        content["tasks"][name] = told
        write(given.results, content, about)


def load(file: GgufFile) -> LlamaCppModel:
    settings = replace(file.settings, context_size=CONTEXT, threads=1)
    return LlamaCppModel.load("draft", file._replace(settings=settings))


def best(steps: Sequence[float], positions: int, step_seconds: Callable[[int], float]) -> tuple[float, int]:
    """Return the most tokens per second, and the number of proposals that makes them."""
    return max((positions / steps[k] / step_seconds(k), k) for k in LENGTHS)


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    seconds = content["seconds"]
    target = {int(n): value for n, value in seconds["target"].items()}
    rows = []
    for label in [*(name for name in seconds if name != "target"), "look-up"]:
        cost = seconds[label]["1"] if label in seconds else 0.0
        for task, told in content["tasks"].items():
            found = told["look-up"] if label == "look-up" else told["drafts"][label]
            steps, positions = found["steps"], told["positions"]
            speed, k = best(steps, positions, lambda k, cost=cost: target[k + 1] + k * cost)  # type: ignore[misc]
            rate = f"{found['acceptance']:.3f}" if "acceptance" in found else ""
            share = f"{1000 * cost:.1f} ({100 * cost / target[1]:.1f} %)"
            pair = " / ".join(f"{positions / steps[n]:.2f}" for n in (3, 7))
            rows.append([label, share, task, rate, pair, k, f"{speed * target[1]:.2f} ×"])
    costs = "draft", "ms a token (share of a pass)", "task"
    head = *costs, "acceptance", "tokens per step of 3 / 7", "best length", "speed"
    return as_table(head, rows, names=7)


if __name__ == "__main__":
    must = {"required": True}
    measure(parse(
        __doc__,
        answers=(Path, "the folder of studies.real_pair.collect"),
        target=(None, must),
        draft=([], must, {"action": "append", "metavar": "NAME=FILE"}),
        task=([], "as it was collected", must, {"action": "append"}),
        problems=(8, "answers of each task at most"),
        about=({}, "what else the provenance says, in JSON", {"type": json.loads}),
        results=RESULT,
    ))  # fmt: skip
