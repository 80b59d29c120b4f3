"""What training a draft gives, beside relaxing and together with it: regenerates docs/studies/training.md.

    python -m studies.training.run                   everything: hours on one core, can be interrupted
    python -m studies.training.run --only-render     tables again, from the result files

Trained drafts and the target's rows are kept in a work folder (`--work`). The learning rate and draft lengths are
chosen on validation problems; the tables are of held-out ones.
"""

from __future__ import annotations

import json
import os
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from cactus_decoding import Request, generate, load_pair, zoo
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.home import user_cache
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.lab.evaluation.intervals import Interval, ratio_of_sums
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.score import steps_taken
from cactus_decoding.lab.reporting.report import with_interval
from cactus_decoding.lab.training.sampling import answer as target_answers
from cactus_decoding.lab.training.sampling import read_answers
from cactus_decoding.lab.training.settings import TrainingSettings
from cactus_decoding.lab.training.training import train_draft
from cactus_decoding.zoo.word_problems import word_problems
from scripts.pages import columns, table
from scripts.results import read, write
from studies.relaxing.run import TEST, longest
from studies.shown import against, metric
from studies.stored import read_runs
from studies.study import SAMPLINGS, answer, run_of, study_of_parts

FOLDER = Path(__file__).with_name("results")
WORK = user_cache() / "training"
WORDED, PLAIN = "bundled:worded", "bundled:draft"
"""Drafts as they come: one that words its answers differently, and one that cannot calculate."""
LOSSES = ("lk", "cross_entropy", "kl", "reverse_kl", "total_variation", "log_acceptance", "block")
PLAIN_START_LOSSES = ("lk", "kl", "total_variation")
"""What the start of which little is expected is trained with."""
SEEDS = (0, 1, 2)
"""Of the trainings of every loss."""
RATES = (3e-4, 1e-3, 3e-3)
ROUNDS = (0, 1)
"""Seeds of the table of four: one draft is answered after another, so that each gets two parts of the time."""
LENGTHS = (4, 6, 8, 10, 14, 20)
VALIDATION = "word_problems:split=validation,seed=23"
LOSSLESS, PROTECTED = {"rule": "lossless"}, {"rule": "clamped:width=3.0", "protect": "digits"}


@dataclass(frozen=True)
class Sizes:
    """How much each part has."""

    documents: int = 4000  # of training data, answered once by the target
    steps: int = 400  # of every training in the comparison of losses
    long: int = 3000  # steps of the trainings that users would do
    texts: int = 300  # held-out, on which trained drafts are compared
    lengths: int = 60  # validation problems, on which draft lengths are chosen
    held_out: int = 500  # problems of the table of four
    trainings: int = 100  # in the comparison of losses: all


class Text(NamedTuple):
    """An answer of the target: its tokens with the prompt's, how many those are, and the target's rows of it."""

    token_ids: list[int]
    start: int
    rows: Tensor


Texts = Mapping[str, Sequence[Text]]
"""By sampling."""


class Trainer:
    """Trains drafts on what the target answers, and says what they give; drafts that are there already stay."""

    def __init__(self, work: Path, sizes: Sizes) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work, self.sizes = work, sizes
        self.target = LlamaForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32)

    def data(self) -> Path:
        """Return the training data: problems, and what the target answers to them."""
        path = self.work / f"data-{self.sizes.documents}.jsonl"
        if not path.exists():
            pair, answers = load_pair("bundled", "ngram"), path.with_suffix(".answers")
            prompts = [each.prompt for each in islice(word_problems("train", seed=5), self.sizes.documents)]
            ids = [pair.tokenizer(prompt).input_ids for prompt in prompts]
            with counting("The target answers", len(prompts)) as progress:
                target_answers(
                    self.target, ids, answers, stop_token_ids=pair.stop_token_ids, max_new_tokens=256, seed=0,
                    report=progress,
                )  # fmt: skip
            texts = pair.tokenizer.batch_decode(read_answers(answers), skip_special_tokens=True)
            pairs = zip(prompts, texts, strict=True)
            lines = (json.dumps({"prompt": prompt, "completion": text}) + "\n" for prompt, text in pairs)
            write_atomically(path, "".join(lines))
        return path

    def train(self, name: str, loss: str, rate: float, steps: int, *, start: str = WORDED, seed: int = 0) -> Path:
        """Return the folder of a trained draft, with a file of what its training took."""
        folder = self.work / name
        if not (folder / "config.json").exists():
            settings = TrainingSettings(
                "bundled", str(self.data()), loss=loss, draft=start, held_out=64, steps=steps, seed=seed,
                evaluate_every=max(1, steps // 4), learning_rate=rate, cache=str(self.work / "rows"),
            )  # fmt: skip
            began = time.perf_counter()
            train_draft(settings, folder)
            took = {"seconds": time.perf_counter() - began, "threads": torch.get_num_threads()}
            write(folder / "seconds.json", took, None)
        return folder

    @torch.inference_mode()
    def texts(self, split: str) -> Texts:
        """Return, for each sampling, the target's answers to problems, with its rows."""
        pair, found = load_pair("bundled", "ngram"), {}
        prompts = [each.prompt for each in islice(word_problems(split, seed=31), self.sizes.texts)]
        for name, sampling in SAMPLINGS.items():
            alone, found[name] = Request(num_speculative_tokens=0, sampling=sampling, max_new_tokens=256), []
            for seed, prompt in enumerate(prompts):
                response = generate(pair, prompt, alone.replace(seed=seed))
                token_ids, start = [*response.prompt_token_ids, *response.token_ids], len(response.prompt_token_ids)
                logits = self.target(torch.tensor([token_ids])).logits[0, start - 1 : -1]
                found[name].append(Text(token_ids, start, SamplingFn(sampling)(logits, token_ids)))
        return found


@torch.inference_mode()
def expected_steps(folder: Path, texts: Texts) -> dict[str, Any]:
    """Return the steps of 6 proposals that each text is expected to take losslessly, and all texts' tokens.

    Rows are exact, and nothing is drawn: drafts are compared on the same texts.
    """
    draft, found = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), {}
    for name, some in texts.items():
        to_probs = SamplingFn(SAMPLINGS[name])
        chances, problem = [], []
        for place, text in enumerate(some):
            logits = draft(torch.tensor([text.token_ids])).logits[0, text.start - 1 : -1]
            chances.append(torch.minimum(text.rows, to_probs(logits, text.token_ids)).sum(-1).clamp(max=1))
            problem.append(torch.full((len(text.rows),), place))
        steps = steps_taken(torch.cat(chances), torch.cat(problem), 6)
        tokens = [len(text.rows) for text in some]
        found[name] = {"tokens": sum(tokens), "texts": tokens, "steps": [round(each, 4) for each in steps.tolist()]}
    return found


def measure(given: Namespace, sizes: Sizes, about: dict[str, Any]) -> None:
    """Train, measure and answer; of what was done already, trained drafts, answers and the learning rate stay."""
    trainer, path = Trainer(given.work.resolve(), sizes), given.folder / "rates.json"
    if not path.exists():
        texts, lengths = trainer.texts("validation"), {}
        for rate in RATES:
            steps = expected_steps(trainer.train(f"rate-{rate:g}", "lk", rate, sizes.steps), texts)["plain"]
            lengths[f"{rate:g}"] = steps["tokens"] / sum(steps["steps"])
        write(path, {"acceptance_length": lengths}, about)
    lengths = read(path)["acceptance_length"]
    rate, texts = float(max(lengths, key=lengths.__getitem__)), trainer.texts("test")
    write(given.folder / "losses.json.gz", compare_losses(trainer, rate, texts), about)
    write(given.folder / "four.json.gz", four_ways(trainer, rate, texts, given.folder, about), about)


def compare_losses(trainer: Trainer, rate: float, texts: Texts) -> dict[str, Any]:
    """Train every loss from three seeds, and measure what each draft gives."""
    sizes = trainer.sizes
    asked = [*product(SEEDS, LOSSES, [WORDED]), *product(SEEDS, PLAIN_START_LOSSES, [PLAIN])]
    asked = asked[: sizes.trainings]
    untrained = {"loss": None, "seed": None}
    found = [{"start": start} | untrained | expected_steps(_folder(start), texts) for start in (WORDED, PLAIN)]
    with counting("Training", len(asked)) as progress:
        for place, (seed, loss, start) in enumerate(asked, 1):
            draft = trainer.train(
                f"{start.partition(':')[2]}-{loss}-{seed}", loss, rate, sizes.steps, start=start, seed=seed
            )
            found.append({"start": start, "loss": loss, "seed": seed} | expected_steps(draft, texts))
            progress(place, f"{start} {loss} {seed}")
    return {"rate": rate, "steps": sizes.steps, "drafts": found}


def four_ways(trainer: Trainer, rate: float, texts: Texts, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Compare drafts as they came and trained, lossless and relaxed, each at its own best length."""
    sizes, drafts = trainer.sizes, {"as it came": WORDED, "trained": "./trained"}
    took = {"trained": read(trainer.train("trained", "lk", rate, sizes.long) / "seconds.json")}
    os.chdir(trainer.work)  # so that results name drafts and not this machine's folders

    def asking(draft: str, length: int, rule: str, **policy: Any) -> RunConfig:
        return run_of(draft, rule, length, policy, problems=sizes.held_out)

    final, relaxed = {}, {"lossless": LOSSLESS, "relaxed, protected": PROTECTED}
    for (name, draft), (how, settings) in product(drafts.items(), relaxed.items()):
        tried = [replace(asking(draft, length, **settings), task=VALIDATION, problems=sizes.lengths)
                 for length in LENGTHS]  # fmt: skip
        runs = answer(folder / "four-chosen.jsonl", tried, about)
        chosen = longest([runs[each] for each in tried])
        final[f"{name}, {how}"] = replace(chosen, task=TEST, problems=sizes.held_out)
    for seed in ROUNDS:
        answer(folder / "four.jsonl", [config.asking(seed=seed) for config in final.values()], about)
    return {
        "chosen": {name: config.as_dict() for name, config in final.items()},
        "expected": {name: expected_steps(_folder(each), texts) for name, each in drafts.items()},
        "took": took, "rate": rate, "steps": sizes.long,
    }  # fmt: skip


def _folder(draft: str) -> Path:
    return zoo.path(draft.partition(":")[2]) if draft.startswith("bundled:") else Path(draft)


def shown(folder: Path, _: Sequence[str]) -> dict[str, str]:
    """Return the tables; raises `OSError` where a result file is missing."""
    losses, four = read(folder / "losses.json.gz"), read(folder / "four.json.gz")
    return {
        "losses": _losses(losses, WORDED),
        "losses of the other draft": _losses(losses, PLAIN),
        "long": _long(four),
        "four": _four(four["chosen"], folder),
        "cheap drafts": _cheap_drafts(read(FOLDER / "cheap_drafts.json")),  # is not measured any more
    }


class Drafts:
    """Drafts that differ in nothing but the seed, along the texts of one sampling."""

    def __init__(self, drafts: Sequence[Mapping[str, Any]], sampling: str) -> None:
        each = [draft[sampling] for draft in drafts]
        self.texts, self.steps = each[0]["texts"], np.mean([one["steps"] for one in each], axis=0)
        self.by_seed = [one["tokens"] / sum(one["steps"]) for one in each]

    @property
    def length(self) -> Interval:
        """The acceptance length of all together, with an interval over texts."""
        return ratio_of_sums(self.texts, self.steps)

    def over(self, other: Drafts) -> Interval:
        """Return the ratio of two acceptance lengths on the same texts."""
        return ratio_of_sums(other.steps, self.steps)

    def beside(self, other: Drafts) -> str:
        """Say whether a difference is one: the texts' interval leaves 1 out, and every seed is on one side of all."""
        ratio = self.over(other)
        if ratio.low > 1 and min(self.by_seed) > max(other.by_seed):
            return "more"
        return "less" if ratio.high < 1 and max(self.by_seed) < min(other.by_seed) else "–"


def _losses(content: Mapping[str, Any], start: str) -> str:
    groups: dict[str | None, list[dict[str, Any]]] = {}
    for each in content["drafts"]:
        if each["start"] == start:
            groups.setdefault(each["loss"], []).append(each)
    rows = []
    for loss, drafts in groups.items():
        row = ["as it came" if loss is None else f"`{loss}`"]
        for sampling in SAMPLINGS:
            ours, seeds, told = Drafts(drafts, sampling), "", ""
            if loss is not None:
                seeds = f"{min(ours.by_seed):.2f} to {max(ours.by_seed):.2f}"
                told = "" if loss == "lk" else ours.beside(Drafts(groups["lk"], sampling))
            row += [with_interval(ours.length, 3), seeds, told]
        rows.append(row)
    return table(["loss", "T = 1", "seeds", "than `lk`", "the paper's sampling", "seeds", "than `lk`"], rows)


def _long(content: Mapping[str, Any]) -> str:
    """Return what long trainings gave losslessly, by both models' rows."""
    rows, untrained = [], content["expected"]["as it came"]
    for name, each in content["expected"].items():
        cells = []
        for sampling in SAMPLINGS:
            ours, base = Drafts([each], sampling), Drafts([untrained], sampling)
            cells += [with_interval(ours.length, 3), "–" if each is untrained else with_interval(ours.over(base), 3)]
        took = content["took"].get(name)
        rows.append([name, *cells, "–" if took is None else f"{took['seconds'] / 60:.0f} ({took['threads']})"])
    header = ["draft", "T = 1", "÷ as it came", "the paper's sampling", "÷ as it came", "minutes (threads)"]
    return table(header, rows)


def _four(configs: Mapping[str, Any], folder: Path) -> str:
    """Return what each run gave, paired by problem with the first of them."""
    found = read_runs(folder / "four.jsonl")
    runs = {name: found[RunConfig.from_dict(each).asking(seed=0)] for name, each in configs.items()}
    names = {id(run): name for name, run in runs.items()}
    first = next(iter(runs.values()))
    return columns(runs.values(), {
        "draft, verification": lambda run: names[id(run)],
        "length": lambda run: run.config.num_speculative_tokens,
        "score": metric("score", 3),
        "− first": against(lambda _: first, "score"),
        "tokens per step": metric("acceptance_length", 2),
        "÷ first": against(lambda _: first, "tokens"),
        "time ÷ first": against(lambda _: first, "time"),
        "nats per token": metric("nats_per_token", 4),
    })  # fmt: skip


def _cheap_drafts(content: Mapping[str, Any]) -> str:
    """Return what drafts cost and bring on a real pair, whose best length makes the most tokens per second."""
    seconds, rows = content["seconds"], []
    target = {int(n): value for n, value in seconds["target"].items()}
    for label in [*(name for name in seconds if name != "target"), "look-up"]:
        cost = seconds[label]["1"] if label in seconds else 0.0
        for task, told in content["tasks"].items():
            found = told["look-up"] if label == "look-up" else told["drafts"][label]
            per_step = [told["positions"] / steps for steps in found["steps"]]
            speed, k = max((tokens / (target[k + 1] + k * cost), k) for k, tokens in enumerate(per_step))
            rate = f"{found['acceptance']:.3f}" if "acceptance" in found else ""
            share = f"{1000 * cost:.1f} ({100 * cost / target[1]:.1f} %)"
            rows.append([label, share, task, rate, f"{per_step[3]:.2f} / {per_step[7]:.2f}", k,
                         f"{speed * target[1]:.2f} ×"])  # fmt: skip
    costs = "draft", "ms a token (share of a pass)", "task"
    return table((*costs, "acceptance", "tokens per step of 3 / 7", "best length", "speed"), rows, names=7)


if __name__ == "__main__":
    study_of_parts(__doc__, FOLDER, Sizes(), measure, shown, work=(WORK, "where trained drafts are"))
