"""What training a draft gives, beside relaxing and together with it: regenerates docs/studies/training.md.

    python -m studies.training.run                   everything: hours on one core, can be interrupted
    python -m studies.training.run --part losses     one of the parts, for a process of its own
    python -m studies.training.run --part losses --shard 0/2    every second training of it; the last shard measures
    python -m studies.training.run --only-render     tables and pictures again, from the result files

Trained drafts and the target's rows are kept in a work folder (`--work`). The learning rate and draft lengths are
chosen on validation problems; the tables are of held-out ones. Needs matplotlib (`pip install -e .[dev]`).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from cactus_decoding import Metrics, Pair, Request, load_pair, stream, zoo
from cactus_decoding.cli import options
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.provenance import provenance
from cactus_decoding.core.files.writing import write_atomically
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.runs.results import RunResult
from cactus_decoding.lab.evaluation.score import steps_taken
from cactus_decoding.lab.training.acceptance.sampling import sample
from cactus_decoding.lab.training.acceptance.settings import TrainingSettings
from cactus_decoding.lab.training.acceptance.training import train_draft
from cactus_decoding.lab.training.adaptation import DraftAdaptation
from cactus_decoding.lab.training.importance.continuing import Branch, continue_alone
from cactus_decoding.zoo.word_problems import word_problems
from scripts.pages import ROOT, put
from scripts.results import parse, read, write
from studies.constraints.stories import ANSWERABLE, constrained_stories
from studies.relaxing.run import SAMPLINGS, longest
from studies.study import answer, at_most
from studies.training.page import shown

FOLDER, PAGE = Path(__file__).with_name("results"), ROOT / "docs" / "studies" / "training.md"
WORK = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cactus-decoding" / "training"
STARTS = {"bundled:worded": "words its answers differently", "bundled:draft": "cannot calculate"}
RELAXED = "relaxed:clamped:width=3.0"
LOSSES = (
    "cross_entropy", "kl", "reverse_kl", "total_variation", "log_acceptance", "lk", "block", RELAXED,
    "relaxed:cactus:delta=1.0",
)  # fmt: skip
FILTERS = (None, "adaspec:keep=0.4")
PLAIN_START_LOSSES = ("kl", "total_variation", "lk")
"""What the start of which little is expected is trained with."""
RATES = (3e-4, 1e-3, 3e-3)
SECONDS = "seconds.json"
"""Beside a trained draft: what its training took, of the process that ended it."""
ROUNDS = (0, 1)
"""Seeds of the table of four: one draft is answered after another, so that each gets two parts of the time."""
LENGTHS = (4, 6, 8, 10, 14, 20)
PARTS = ("losses", "four", "adaptation")
VALIDATION, TEST = "word_problems:split=validation,seed=23", "word_problems"
PROTECTED = {"rule": "clamped:width=3.0", "protect": "digits"}


@dataclass(frozen=True)
class Sizes:
    """How much each part has."""

    documents: int = 4000  # of training data, answered once by the target
    steps: int = 400  # of every training in the comparison of losses
    long: int = 3000  # steps of the trainings that users would do
    texts: int = 300  # held-out, on which trained drafts are compared
    lengths: int = 60  # validation problems, on which draft lengths are chosen
    held_out: int = 500  # problems of the table of four
    stories: int = 300  # of the family that no draft saw
    old: int = 200  # problems of the usual families, for what was forgotten
    seeds: int = 3  # trainings of every loss


class Text(NamedTuple):
    """An answer of the target: its tokens with the prompt's, how many those are, and the target's rows of it."""

    token_ids: list[int]
    start: int
    rows: Tensor


Texts = Mapping[str, Sequence[Text]]
"""By sampling."""


class Study:
    """The study's parts, each with a result file of its own."""

    def __init__(self, folder: Path, work: Path, sizes: Sizes, arguments: Mapping[str, Any]) -> None:
        self.folder, self.work, self.sizes, self.arguments = folder, work, sizes, arguments
        self.target = LlamaForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32)

    def data(self) -> Path:
        """Return the training data: problems, and what the target answers to them."""
        path = self.work / f"data-{self.sizes.documents}.jsonl"
        if not path.exists():
            pair = load_pair("bundled", "ngram")
            prompts = [each.prompt for each in islice(word_problems("train", seed=5), self.sizes.documents)]
            ids = [pair.tokenizer(prompt).input_ids for prompt in prompts]
            lines, size = [], 64
            with counting("The target answers", len(ids)) as progress:
                for start in range(0, len(ids), size):
                    found = sample(
                        self.target, ids[start : start + size], stop_token_ids=pair.stop_token_ids,
                        max_new_tokens=256, seed=start,
                    )  # fmt: skip
                    texts = pair.tokenizer.batch_decode(found, skip_special_tokens=True)
                    some = prompts[start : start + size]
                    lines += [
                        json.dumps({"prompt": prompt, "completion": text})
                        for prompt, text in zip(some, texts, strict=True)
                    ]
                    progress(len(lines))
            write_atomically(path, "\n".join(lines) + "\n")
        return path

    def train(self, name: str, start: str, loss: str, filter: str | None, seed: int, rate: float, steps: int) -> Path:
        """Return the folder of a trained draft, after training it if it is not there."""
        folder = self.work / name
        if not (folder / "config.json").exists():
            settings = TrainingSettings(
                "bundled", str(self.data()), loss=loss, draft=start, filter=filter, held_out=64, steps=steps, seed=seed,
                evaluate_every=max(1, steps // 4), learning_rate=rate, cache=str(self.work / "rows"),
            )  # fmt: skip
            began = time.perf_counter()
            train_draft(settings, folder)
            write(folder / SECONDS, {"seconds": time.perf_counter() - began, "threads": torch.get_num_threads()}, None)
        return folder

    @torch.inference_mode()
    def texts(self, split: str) -> Texts:
        """Return, for each sampling, the target's answers to problems, with its rows."""
        pair, found = load_pair("bundled", "ngram"), {}
        prompts = [each.prompt for each in islice(word_problems(split, seed=31), self.sizes.texts)]
        ids = [list(pair.tokenizer(prompt).input_ids) for prompt in prompts]
        stop = pair.stop_token_ids[:1]
        for name, sampling in SAMPLINGS.items():
            branches = [Branch(each, len(each), seed) for seed, each in enumerate(ids)]
            answers = continue_alone(pair, branches, sampling, max_new_tokens=256)
            found[name] = []
            for prompt, text in zip(ids, answers, strict=True):
                token_ids = [*prompt, *pair.tokenizer(text, add_special_tokens=False).input_ids, *stop]
                logits = self.target(torch.tensor([token_ids])).logits[0, len(prompt) - 1 : -1]
                rows = SamplingFn(sampling)(logits, token_ids)
                found[name].append(Text(token_ids, len(prompt), rows))
        return found

    def rate(self) -> float:
        """Return the learning rate that validation texts choose for all losses, by `lk`."""
        path = self.folder / "rates.json"
        if not path.exists():
            texts, lengths = self.texts("validation"), {}
            for rate in RATES:
                draft = self.train(f"rate-{rate:g}", "bundled:worded", "lk", None, 0, rate, self.sizes.steps)
                steps = expected_steps(draft, texts)["plain"]
                lengths[f"{rate:g}"] = steps["tokens"] / sum(steps["steps"])
            write(path, {"acceptance_length": lengths}, self.arguments)
        lengths = read(path)["acceptance_length"]
        return float(max(lengths, key=lengths.__getitem__))

    def measured(self, draft: Path, texts: Texts) -> dict[str, Any]:
        """Return a trained draft's expected steps, kept beside it."""
        path = draft / f"expected-{self.sizes.texts}.json"
        if not path.exists():
            write(path, expected_steps(draft, texts), None)
        return read(path)  # type: ignore[no-any-return]

    def losses(self, shard: tuple[int, int]) -> None:
        """Train every loss with and without the filter from three seeds, and measure what each draft gives."""
        rate, seeds = self.rate(), range(self.sizes.seeds)
        asked = list(product(seeds, LOSSES, FILTERS, ["bundled:worded"]))
        asked += list(product(seeds, PLAIN_START_LOSSES, [None], ["bundled:draft"]))
        part, parts = shard
        with counting("Training", len(asked)) as progress:
            for number, (seed, loss, filter, start) in enumerate(asked):
                if number % parts == part:
                    self.train(_name(seed, loss, filter, start), start, loss, filter, seed, rate, self.sizes.steps)
                progress(number + 1, f"{start} {loss} {filter or ''} {seed}")
        if part != parts - 1:
            return
        texts, found = self.texts("test"), []
        for start in STARTS:
            steps = expected_steps(zoo.path(start.partition(":")[2]), texts)
            found.append({"start": start, "loss": None, "filter": None, "seed": None} | steps)
        there = [each for each in asked if (self.work / _name(*each) / "config.json").exists()]
        with counting("Measuring", len(there)) as progress:
            for number, (seed, loss, filter, start) in enumerate(there):
                steps = self.measured(self.work / _name(seed, loss, filter, start), texts)
                found.append({"start": start, "loss": loss, "filter": filter, "seed": seed} | steps)
                progress(number + 1)
        content = {"rate": rate, "steps": self.sizes.steps, "drafts": found}
        write(self.folder / "losses.json.gz", content, self.arguments)

    def four_ways(self) -> None:
        """Compare drafts as they came and trained, lossless and relaxed, each at its own best length."""
        rate = self.rate()
        drafts = {"as it came": "bundled:worded"}
        took: dict[str, dict[str, float]] = {}
        for name, loss in (("trained", "lk"), ("trained-for-clamped", RELAXED)):
            folder = self.train(name, "bundled:worded", loss, None, 0, rate, self.sizes.long)
            drafts[name.replace("-", " ")] = f"./{name}"
            took[name.replace("-", " ")] = read(folder / SECONDS)
        os.chdir(self.work)  # so that results name drafts and not this machine's folders
        texts = self.texts("test")
        lengths = {name: expected_steps(_folder(each), texts) for name, each in drafts.items()}
        asked = {
            f"{name}, {how}": (each, settings)
            for (name, each), (how, settings) in product(
                drafts.items(), {"lossless": {"rule": "lossless"}, "relaxed, protected": PROTECTED}.items()
            )
        }
        chosen = {}
        for name, (each, settings) in asked.items():
            configs = [self._config(each, settings, length, VALIDATION, self.sizes.lengths) for length in LENGTHS]
            chosen[name] = longest(configs, self._answer("four-chosen", configs))
        final = {name: replace(config, task=TEST, problems=self.sizes.held_out) for name, config in chosen.items()}
        alike = int(final["trained, relaxed, protected"].num_speculative_tokens)
        under = {name: self._config(each, PROTECTED, alike, TEST, self.sizes.held_out) for name, each in drafts.items()}
        together = sorted([*final.values(), *under.values()], key=lambda config: config.draft)
        for seed in ROUNDS:
            self._answer("four", [config.asking(seed=seed) for config in together])
        content = {
            "chosen": {name: config.as_dict() for name, config in final.items()},
            "under the rule": {name: config.as_dict() for name, config in under.items()},
            "expected": lengths,
            "took": took,
            "rate": rate,
            "steps": self.sizes.long,
        }
        write(self.folder / "four.json", content, self.arguments)

    def _config(self, draft: str, settings: Mapping[str, Any], length: int, task: str, problems: int) -> RunConfig:
        policy = {name: value for name, value in settings.items() if name != "rule"}
        request = Request(settings["rule"], num_speculative_tokens=length, policy=relaxation_policy(**policy))
        return RunConfig(task, "bundled", draft, problems=problems, request=request)

    def _answer(self, part: str, configs: Sequence[RunConfig]) -> dict[RunConfig, RunResult]:
        return answer(self.folder / f"{part}.jsonl", configs, provenance(self.arguments))

    def adaptation(self) -> None:
        """Answer stories of a family that no draft saw, with and without adaptation; then the usual families."""
        stories = constrained_stories("test", seed=3)
        unseen = (each.prompt for each in stories if each.kind in ANSWERABLE and each.kind != "ordinary")
        prompts = list(islice(unseen, self.sizes.stories))
        old = [each.prompt for each in islice(word_problems("test", seed=37), self.sizes.old)]
        found = {}
        for start, adapts in product(STARTS, (False, True)):
            pair = load_pair(draft=start)
            name = f"{start} {'adapting' if adapts else 'as it came'}"
            adaptation = DraftAdaptation(pair) if adapts else None
            each: dict[str, Any] = {"new": _answered(pair, prompts, adaptation, name)}
            if adaptation is not None:
                each |= {"steps": adaptation.steps, "seconds": adaptation.seconds}
                each["response_seconds"] = adaptation.response_seconds
            each["old"] = _answered(pair, old, None, f"{name}, the usual families")
            found[name] = each
        write(self.folder / "adaptation.json", {"drafts": found}, self.arguments)


def _answered(pair: Pair, prompts: Sequence[str], adaptation: DraftAdaptation | None, name: str) -> dict[str, Any]:
    """Return steps and tokens of each lossless answer."""
    made: list[Metrics] = []
    with counting(name, len(prompts)) as progress:
        for seed, prompt in enumerate(prompts):
            response = stream(pair, prompt, seed=seed)
            for _ in response if adaptation is None else adaptation.watch(response):
                pass
            made.append(response.metrics)
            progress(len(made))
    return {"steps": [each.steps for each in made], "accepted": [each.accepted for each in made]}


@torch.inference_mode()
def expected_steps(folder: Path, texts: Texts) -> dict[str, Any]:
    """Return the steps of 6 proposals that each text is expected to take losslessly, and all texts' tokens.

    Rows are exact, and nothing is drawn: drafts are compared on the same texts.
    """
    draft, found = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32), {}
    for name, some in texts.items():
        to_probs = SamplingFn(SAMPLINGS[name])
        chances, problem = [], []
        for number, text in enumerate(some):
            logits = draft(torch.tensor([text.token_ids])).logits[0, text.start - 1 : -1]
            chances.append(torch.minimum(text.rows, to_probs(logits, text.token_ids)).sum(-1).clamp(max=1))
            problem.append(torch.full((len(text.rows),), number))
        steps = steps_taken(torch.cat(chances), torch.cat(problem), 6)
        tokens = [len(text.rows) for text in some]
        found[name] = {"tokens": sum(tokens), "texts": tokens, "steps": [round(each, 4) for each in steps.tolist()]}
    return found


def _name(seed: int, loss: str, filter: str | None, start: str) -> str:
    return "-".join([start.partition(":")[2], loss, *([] if filter is None else ["adaspec"]), str(seed)])


def _folder(draft: str) -> Path:
    return zoo.path(draft.partition(":")[2]) if draft.startswith("bundled:") else Path(draft)


def main() -> None:
    """Train, measure and answer what is missing, then render."""
    given = parse(
        __doc__,
        part=([*PARTS], {"choices": PARTS}),
        shard=("0/1", "of the trainings of losses, such as 0/2"),
        folder=(FOLDER, "where result files are"),
        work=(WORK, "where trained drafts are"),
        page=(PAGE, "the page whose tables are replaced"),
        small=(None, "at most so much of everything, for a trial", {"type": int}),
        only_render=False,
    )
    given.folder, given.work, given.page = (each.resolve() for each in (given.folder, given.work, given.page))
    for folder in (given.folder, given.work):
        folder.mkdir(parents=True, exist_ok=True)
    options.prepare(1, small=True)
    if not given.only_render:
        arguments = {"study": "training", "small": given.small}
        study = Study(given.folder, given.work, at_most(given.small, Sizes()), arguments)
        if "losses" in given.part:
            first, parts = map(int, given.shard.split("/"))
            study.losses((first, parts))
        if "four" in given.part:
            study.four_ways()
        if "adaptation" in given.part:
            study.adaptation()
    put(given.page, shown(given.folder))


if __name__ == "__main__":
    main()
