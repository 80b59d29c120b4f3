"""Does relaxing break a constraint that only the target knows? Regenerates docs/studies/constraints.md.

    python -m studies.constraints.run                trains if need be, answers what is missing, renders
    python -m studies.constraints.run --only-render  tables and picture again, from the result file

The bundled target learns to answer `#### cannot tell` to stories whose number is missing or contradicted; no draft has
seen one. Training takes about 20 minutes on one core, answering hours. Everything can be interrupted and continued: the
checkpoint, the weights and single answers are kept in a work folder (`--work`). Needs matplotlib (`pip install
-e .[dev]`).
"""

from __future__ import annotations

import hashlib
import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import count, islice, product
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from cactus_decoding import Metrics, Pair, Request, generate, load_pair, zoo
from cactus_decoding.cli.display import counting
from cactus_decoding.core.files.home import user_cache
from cactus_decoding.core.files.writing import as_json
from cactus_decoding.lab.evaluation.runs.results import Journal
from factory.language_model import TrainingPlan, train_language_model
from studies.constraints.page import shown
from studies.constraints.stories import ConstrainedStory, constrained_stories, outcome
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "constraints.json.gz"
WORK = user_cache() / "constraints"
PLANS = (
    (TrainingPlan(steps=320, learning_rate=2e-3, warmup=20, decay=0.475, seed=11), 0.0),
    (TrainingPlan(steps=480, batch_size=48, learning_rate=2e-3, warmup=20, decay=0.6, seed=12), 0.0),
    (TrainingPlan(steps=800, batch_size=48, learning_rate=2e-3, warmup=20, decay=0.7, seed=13), 0.4),
)
"""Plans, each of which goes on from the one before, with the share of additional stories that state a fact twice."""

WORDS = r"\d|missing|number|both"
"""Digits, and the words that every refusal has before its last line."""
STARTS = r"\d|^[A-Z]"
"""Digits, and what begins a sentence (or a name): also where a refusal begins."""
COUNTS = ("steps", "drafted", "accepted", "relaxed", "generated", "metered", "fell_back", "nats")
TRUNCATED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}


def settings() -> list[dict[str, Any]]:
    """Return what is asked of responses, in the order in which it is answered; lossless leads each sampling."""
    cactus, clamped = {"rule": "cactus:delta=1.0"}, {"rule": "clamped:width=3.0"}
    both = (cactus, clamped)
    plain: list[dict[str, Any]] = [{"rule": "lossless"}, *both]
    for protect in ("digits", WORDS, STARTS):
        plain += [rule | {"protect": protect} for rule in both]
    for nats in (0.05, 0.5):
        plain += [rule | {"budget_nats": nats} for rule in both]
    plain += [rule | {"lossless_tokens": 20} for rule in both]
    others = ("cactus:delta=0.1", "clamped:width=1.0", "typical", "ensemble:weight=0.3", "top_k:k=10")
    plain += [{"rule": rule} for rule in (*others, "lenience:lenience=0.5", "cactus:delta=1.0,solver=exact")]
    truncated = [{"rule": "lossless"}, *both, clamped | {"protect": "digits"}, {"rule": "typical"}]
    greedy = [{"rule": rule, "temperature": 0.0} for rule in ("lossless", "relaxed_greedy:margin=1.0")]
    return [*plain, *({**each, **TRUNCATED} for each in truncated), *greedy]


def train(work: Path, plans: Sequence[tuple[TrainingPlan, float]] = PLANS) -> Path:
    """Return the folder of the target that refuses, which is trained first if it is not there."""
    folder = work / "target"
    if (folder / "config.json").exists():
        return folder
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    model = LlamaForCausalLM.from_pretrained(zoo.path("target"), dtype=torch.float32)
    done = 0
    with counting("training", sum(plan.steps for plan, _ in plans)) as progress:
        for number, (plan, two_numbers) in enumerate(plans, start=1):
            model = train_language_model(
                model.config,
                tokenizer,
                plan,
                work / f"target-{number}.pt",
                lambda step, loss, done=done: progress(done + step, f"loss {loss:.3f}"),  # type: ignore[misc]
                initial=model.state_dict(),
                source=partial(constrained_stories, "train", two_numbers=two_numbers),
            )
            done += plan.steps
    unfinished = work / "unfinished"
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder)
    return folder


def respond(pair: Pair, story: ConstrainedStory, setting: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Answer one story; raises `AssertionError` for a response that overspent its budget."""
    request = Request.from_dict({**setting, "seed": seed})
    response = generate(pair, story.prompt, request)
    metrics = response.metrics
    if request.budget is not None and metrics.nats > request.budget.limit:
        raise AssertionError(f"a response spent {metrics.nats} nats of {request.budget.limit}")
    counts = {name: getattr(metrics, name) for name in COUNTS}
    return {"outcome": outcome(story.answer, response.text), "text": response.text, **counts}


def summary(setting: Mapping[str, Any], answers: list[dict[str, Any]]) -> Any:
    """Return a setting's outcomes, story by story, with its counts."""
    totals = {name: sum(each[name] for each in answers) for name in COUNTS}
    return {
        "setting": dict(setting),
        "outcomes": "".join(each["outcome"] for each in answers),
        "max_nats": max(each["nats"] for each in answers),
        **totals,
        "acceptance_length": Metrics(steps=totals["steps"], accepted=totals["accepted"]).acceptance_length,
    }


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def measure(given: Namespace) -> dict[str, Any]:
    """Train, and answer what the work folder's journal lacks."""
    target = train(given.work)
    pair = load_pair(target, given.draft, dtype=torch.float32)
    stories = list(islice(constrained_stories("test", seed=given.seed), given.stories))
    identity = {"target": digest(target), "draft": digest(given.draft), "seed": given.seed}
    asked = settings()[: given.settings]
    journal = Journal(given.work / f"answers-{given.draft.name}-{given.seed}.jsonl")
    answers: list[list[dict[str, Any]]] = [[] for _ in asked]
    with counting("answers", len(asked) * len(stories)) as progress:
        done = count(1)
        for (i, story), (setting, kept) in product(enumerate(stories), zip(asked, answers, strict=True)):
            key = f"{as_json(identity)} {json.dumps(setting)} {i}"
            if not journal.entries(key):
                journal.add(key, respond(pair, story, setting, given.seed + i))
            kept += journal.entries(key)
            progress(next(done), f"story {i + 1}, {setting['rule']}")
    return {
        "training": {"plans": [asdict(plan) | {"two_numbers": share} for plan, share in PLANS], **identity},
        "kinds": [story.kind for story in stories],
        "settings": [summary(setting, kept) for setting, kept in zip(asked, answers, strict=True)],
    }


if __name__ == "__main__":
    study(
        __doc__, RESULTS, "studies/constraints.md", measure, shown,
        stories=(1000, "held-out stories of each setting"),
        seed=(0, "of the stories; story i is answered with seed + i"),
        draft=(zoo.path(zoo.DRAFTS[0]), "folder of the proposing model"),
        settings=(None, "only so many of the settings, for a trial", {"type": int}),
        work=(WORK, "folder of checkpoint, weights and single answers"),
    )  # fmt: skip
