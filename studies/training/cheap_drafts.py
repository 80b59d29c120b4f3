"""What cheap drafts cost and bring on a real pair of GGUF files, beside the draft as it came and look-up.

    python -m studies.training.cheap_drafts answer WORK --target T.gguf --task gsm8k:path=gsm8k_test.jsonl ...
    python -m studies.training.cheap_drafts measure WORK --target T.gguf --draft "0.5B=D.gguf" --draft "16,384 rows=E.gguf" ...
    python -m studies.training.run --only-render

``answer`` has the target write the beginnings of its answers in chat at temperature 1 and keeps its rows in WORK.
``measure`` reads drafts along them: a position's acceptance is the sum of min(p, q), a step's tokens follow from that
(`steps_taken`), and of look-up from what it really proposes there. Tokens per second are arithmetic on these and on
passes timed in turn by the processor's clock, on one thread, so that other programs' load does not count as much.
"""  # noqa: E501

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cactus_decoding.drafting.suffix import SuffixDrafter
from cactus_decoding.evaluation.chat import Chat, tokenizer_of
from cactus_decoding.evaluation.expected import steps_taken
from cactus_decoding.evaluation.tasks.sources import parse_task
from cactus_decoding.evaluation.tasks.task import in_chat
from cactus_decoding.files.provenance import provenance
from cactus_decoding.files.writing import as_json, write_atomically
from cactus_decoding.models.llama_cpp.context import Context, Portion
from cactus_decoding.models.llama_cpp.model import LlamaCppModel
from cactus_decoding.models.llama_cpp.settings import LlamaCppSettings, parse_gguf
from cactus_decoding.models.llama_cpp.weights import GgufModel

RESULT = Path("studies/training/results/cheap_drafts.json")
LENGTHS, ROUNDS, CONTEXT = range(8), 3, 1024


def answer(given: Namespace) -> None:
    """Write the target's answers, all in one batch, and its rows."""
    model = GgufModel.load("target", Path(given.target))
    tokenizer, generator = tokenizer_of(given.target), torch.Generator().manual_seed(given.seed)
    problems = [
        (task.name, problem)
        for spelled in given.task
        for task in [in_chat(parse_task(spelled, given.problems, chat=True), tokenizer, Chat())]
        for problem in task.problems
    ]
    prompts = [list(tokenizer(problem.prompt).input_ids) for _, problem in problems]
    context = Context.make(model, LlamaCppSettings(context_size=CONTEXT, threads=1), len(prompts))
    rows: list[list[Tensor]] = []
    for number, prompt in enumerate(prompts):
        rows.append([context.read([Portion(number, np.array(prompt), 0, 1)])[0].clone()])
        print(f"read prompt {number + 1} of {len(prompts)}", flush=True)
    answers: list[list[int]] = [[] for _ in prompts]
    live = list(range(len(prompts)))
    for length in range(given.tokens):
        for number in live:
            answers[number].append(int(rows[number][-1].softmax(-1).multinomial(1, generator=generator)))
        live = [n for n in live if answers[n][-1] not in model.stop_token_ids and length + 1 < given.tokens]
        portions = [Portion(n, np.array(answers[n][-1:]), len(prompts[n]) + length, 1) for n in live]
        for number, row in zip(live, context.read(portions).clone() if live else [], strict=True):
            rows[number].append(row)
        print(f"wrote {length + 1} tokens of {len(live)}", flush=True)
    given.work.mkdir(parents=True, exist_ok=True)
    save_file({str(n): torch.stack(each) for n, each in enumerate(rows)}, given.work / "rows.safetensors")
    about = provenance(
        {
            "target": Path(given.target).name,
            "tasks": [each.partition(":")[0] for each in given.task],
            "problems": given.problems,
            "tokens": given.tokens,
            "seed": given.seed,
            "temperature": 1.0,
        }
    )
    texts = [
        {"task": name, "prompt": prompt, "answer": text}
        for (name, _), prompt, text in zip(problems, prompts, answers, strict=True)
    ]
    write_atomically(given.work / "answers.json", json.dumps({"provenance": about, "texts": texts}))


def logits_of(model: LlamaCppModel, text: Mapping[str, Any]) -> Tensor:
    """Return a draft's logits at each position of an answer."""
    model.reset()
    ids = [*text["prompt"], *text["answer"]]
    return model.append(ids[:-1], len(text["answer"])).clone()


def acceptance(logits: Tensor, target: Tensor) -> Tensor:
    """Return the chance that lossless verification keeps a draft's proposal, at each position of an answer."""
    rows = (each[:, : target.shape[1]].double().softmax(-1) for each in (logits, target))
    return torch.minimum(*rows).sum(-1)


def looked_up(text: Mapping[str, Any], limit: int) -> int:
    """Return how many steps an answer takes whose proposals are looked up."""
    drafter, steps, place = SuffixDrafter(), 0, 0
    answer = text["answer"]
    while place < len(answer):
        ids = [*text["prompt"], *answer[:place]]
        found = drafter.propose(ids, limit, lambda logits, _: logits, None).token_ids if limit else []
        kept = next((i for i, token in enumerate(found) if [token] != answer[place + i : place + i + 1]), len(found))
        place, steps = place + kept + 1, steps + 1
    return steps


def pass_times(models: Mapping[str, tuple[LlamaCppModel, Sequence[int]]], prefix: Sequence[int]) -> dict[str, Any]:
    """Return processor seconds of passes behind a text, by model and width: medians of rounds taken in turn."""
    found: dict[str, dict[int, list[float]]] = {name: {n: [] for n in widths} for name, (_, widths) in models.items()}
    for model, _ in models.values():
        model.reset()
        model.append(list(prefix), 1)
    for _ in range(ROUNDS):
        for name, (model, widths) in models.items():
            for width in widths:
                began = time.process_time()
                model.append([*prefix[:width]], width)
                found[name][width].append(time.process_time() - began)
                model.rollback(len(prefix))
    return {name: {n: median(times) for n, times in each.items()} for name, each in found.items()}


def measure(given: Namespace) -> None:
    """Write the result file, again after each task; that of a draft ``FILE<NAME`` has the rows of NAME in its part."""
    kept = json.loads((given.work / "answers.json").read_text())
    rows, texts = load_file(given.work / "rows.safetensors"), kept["texts"]
    drafts = {name: path.partition("<") for name, _, path in (each.partition("=") for each in given.draft)}
    models = {name: load(path) for name, (path, _, _) in drafts.items()}
    widths = {"target": (load(given.target), [k + 1 for k in LENGTHS])}
    seconds = pass_times(widths | {label: (model, [1]) for label, model in models.items()}, texts[0]["prompt"])
    print(seconds, flush=True)
    files = {label: Path(path).stat().st_size for label, (path, _, _) in drafts.items()}
    about = {"target": Path(given.target).name, "bytes": files, "threads": 1, "rounds": ROUNDS} | given.about
    content: dict[str, Any] = {"provenance": provenance(about), "answers": kept["provenance"], "seconds": seconds}
    content["tasks"] = {}
    for name in dict.fromkeys(text["task"] for text in texts):
        places = [n for n, text in enumerate(texts) if text["task"] == name]
        chances: dict[str, list[Tensor]] = {label: [] for label in models}
        for n in places:
            read: dict[str, Tensor] = {}
            for label, model in models.items():
                part, whole = model.model.part, drafts[label][2]
                if whole and part is not None:
                    read[label] = part.widen(read[whole][:, part.token_ids])
                else:
                    read[label] = logits_of(model, texts[n])
                chances[label].append(acceptance(read[label], rows[str(n)]))
            print(name, n, {label: round(float(each[-1].mean()), 3) for label, each in chances.items()}, flush=True)
        told: dict[str, Any] = {"positions": sum(len(texts[n]["answer"]) for n in places), "drafts": {}}
        for label, each in chances.items():
            group, every = torch.cat([torch.full((len(one),), i) for i, one in enumerate(each)]), torch.cat(each)
            steps = [float(steps_taken(every, group, k).sum()) if k else float(len(every)) for k in LENGTHS]
            told["drafts"][label] = {"acceptance": float(every.mean()), "steps": steps}
        told["look-up"] = {"steps": [sum(looked_up(texts[n], k) for n in places) for k in LENGTHS]}
        content["tasks"][name] = told
        write_atomically(RESULT, as_json(content, indent=1) + "\n")


def load(path: str) -> LlamaCppModel:
    file = parse_gguf(f"{path}:context_size={CONTEXT},threads=1")
    assert file is not None
    return LlamaCppModel.load("draft", file)


def best(steps: Sequence[float], positions: int, step_seconds: Callable[[int], float]) -> tuple[float, int]:
    """Return the most tokens per second, and the number of proposals that makes them."""
    return max((positions / steps[k] / step_seconds(k), k) for k in LENGTHS)


def table(content: Mapping[str, Any]) -> str:
    """Return the table of the page."""
    seconds = content["seconds"]
    target = {int(n): value for n, value in seconds["target"].items()}
    lines = [
        "| draft | ms a token (share of a pass) | task | acceptance | tokens per step of 3 / 7 | best length | speed |",
        "|---|---|---|---|---|---|---|",
    ]
    for label in [*(name for name in seconds if name != "target"), "look-up"]:
        cost = seconds[label]["1"] if label in seconds else 0.0
        for task, told in content["tasks"].items():
            found = told["look-up"] if label == "look-up" else told["drafts"][label]
            steps, positions = found["steps"], told["positions"]
            speed, k = best(steps, positions, lambda k, cost=cost: target[k + 1] + k * cost)  # type: ignore[misc]
            rate = f"{found['acceptance']:.3f}" if "acceptance" in found else ""
            share = f"{1000 * cost:.1f} ({100 * cost / target[1]:.1f} %)"
            pair = " / ".join(f"{positions / steps[n]:.2f}" for n in (3, 7))
            lines.append(f"| {label} | {share} | {task} | {rate} | {pair} | {k} | {speed * target[1]:.2f} × |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["answer", "measure"])
    parser.add_argument("work", type=Path, nargs="?", default=Path("build/cheap_drafts"))
    parser.add_argument("--target")
    parser.add_argument("--draft", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--task", action="append", default=[])
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--about", type=json.loads, default={}, help="what else the provenance says, in JSON")
    given = parser.parse_args(arguments)
    {"answer": answer, "measure": measure}[given.stage](given)


if __name__ == "__main__":
    main()
