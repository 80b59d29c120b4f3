"""Whole trainings of tiny models: what is written, what is refused, and that interruptions change nothing."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.draft_training import save_tiny_models, settings, write_data
from support.interruptions import interrupt_when
from support.tiny_tokenizers import tiny_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from cactus_decoding import Request, generate, load_pair, stream
from cactus_decoding.core.files.writing import part_path
from cactus_decoding.lab.training import TrainingSettings, train_draft
from cactus_decoding.lab.training.data import digest_of, read_documents
from cactus_decoding.lab.training.saving import occupied
from cactus_decoding.lab.training.trainer import AcceptanceTrainer
from cactus_decoding.zoo.word_problems import EXAMPLES

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")
TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    torch.set_num_threads(1)
    save_tiny_models(folder)
    write_data(folder / "data.jsonl")
    return folder


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory) -> Path:
    """Eight steps that nothing interrupted."""
    return train_draft(settings(folder), tmp_path_factory.mktemp("whole") / "draft")


def log_of(output: Path) -> list[dict]:
    return json.loads((output / "training.json").read_text())["log"]


def test_the_draft_is_a_plain_model_that_every_loader_takes(folder, trained):
    assert AutoModelForCausalLM.from_pretrained(trained).dtype == torch.float32
    assert AutoTokenizer.from_pretrained(trained).get_vocab() == (
        AutoTokenizer.from_pretrained(folder / "target").get_vocab()
    )
    pair = load_pair(folder / "target", trained)
    assert generate(pair, "Question:", Request(max_new_tokens=5, seed=0)).token_ids
    assert not part_path(trained).exists()
    assert not {each.name for each in trained.iterdir()} & {"training_args.bin", "optimizer.pt", "answers.jsonl"}
    before, after = (load_file(each / "model.safetensors") for each in (folder / "draft", trained))
    assert before.keys() == after.keys()
    assert any(not before[name].equal(after[name]) for name in after)


def test_training_raises_what_it_is_for_and_the_model_card_tells_recipe_data_and_acceptance(trained):
    lengths = [each["eval_acceptance_length"] for each in log_of(trained) if "eval_acceptance_length" in each]
    assert len(lengths) == 5
    assert max(lengths) > lengths[0]
    text, told = (trained / "README.md").read_text(), json.loads((trained / "training.json").read_text())
    before, after = told["before"], told["after"]
    assert after["lossless"]["length"][0] > before["lossless"]["length"][0]  # of the best checkpoint
    assert set(after) == {"lossless", "clamped:width=1.0", "clamped:width=3.0", "cactus:delta=1.0"}
    sha = told["provenance"]["arguments"]["data_sha256"]
    for said in (sha, '"loss": "lk"', "not stated by its model card", *(f"| `{rule}` |" for rule in after)):
        assert said in text


@pytest.mark.parametrize(
    "others",
    [
        {"draft": None, "layers": 1, "width": 24, "loss": "kl"},
        {"draft": None, "first_layers": 1, "loss": "log_acceptance"},
        {"loss": "total_variation"},
        {"cache": "rows", "loss": "block"},
        {"on_policy": 0.5, "refresh_every": 2, "max_new_tokens": 8},
        {"bfloat16": True, "gradient_accumulation": 2},
    ],
    ids=lambda others: next(iter(others)) + str(len(others)),
)
@pytest.mark.slow
def test_every_start_and_source_of_rows_trains(folder, tmp_path, monkeypatch, others):
    monkeypatch.chdir(tmp_path)
    stages: list[str] = []
    asked = settings(folder, steps=4, **others)
    output = train_draft(asked, tmp_path / "draft", lambda stage, *_: stages.append(stage))
    model = AutoModelForCausalLM.from_pretrained(output)
    assert model.config.vocab_size == 1003
    if "cache" in others:
        assert list((tmp_path / "rows").glob("*/*.safetensors"))
    if "layers" in others:
        assert (model.config.num_hidden_layers, model.config.hidden_size) == (1, 24)
        assert model.config.num_attention_heads == 3
    if "first_layers" in others:
        first = AutoModelForCausalLM.from_pretrained(folder / "target").model.layers[0].mlp.up_proj.weight
        assert (model.model.layers[0].mlp.up_proj.weight - first).abs().max() < 0.05


def test_the_target_answers_prompts_and_its_answers_are_kept(folder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [json.loads(line) for line in (folder / "data.jsonl").read_text().splitlines()]
    prompts.write_text("".join(json.dumps({"prompt": each["prompt"]}) + "\n" for each in lines[:12]))
    asked = settings(folder, data=str(prompts), steps=2, max_new_tokens=4)
    output = train_draft(asked, tmp_path / "draft")
    assert len((output / "answers.jsonl").read_text().splitlines()) == 12


def test_gradients_of_several_batches_are_those_of_one(folder, tmp_path):
    losses = []
    for settings_of in ({"batch_size": 4}, {"batch_size": 2, "gradient_accumulation": 2}):
        output = train_draft(settings(folder, steps=3, **settings_of), tmp_path / str(len(losses)))
        losses.append([each["eval_loss"] for each in log_of(output) if "eval_loss" in each])
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0][0] != losses[0][-1]


@pytest.mark.parametrize(("loss", "reads"), [("cross_entropy", False), ("lk", True)])
def test_the_target_reads_what_is_learned_only_where_the_loss_needs_its_rows(
    loss, reads, folder, tmp_path, monkeypatch
):
    passes = []
    rows = AcceptanceTrainer._target_rows

    def noted(trainer: AcceptanceTrainer, *given: Any) -> Any:
        passes.append(trainer.model.training)
        return rows(trainer, *given)

    monkeypatch.setattr(AcceptanceTrainer, "_target_rows", noted)
    train_draft(settings(folder, steps=2, loss=loss), tmp_path / "draft")
    assert (True in passes) is reads
    assert False in passes  # the checkpoint is chosen by what the target accepts


@pytest.mark.slow
def test_two_processes_give_the_same_losses_as_one(folder, tmp_path):
    one = train_draft(settings(folder, batch_size=4), tmp_path / "one")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    given = json.dumps({"batch_size": 2, "folder": str(folder), "output": str(tmp_path / "two")})
    command = [sys.executable, *launcher, "-m", "support.draft_training", given]
    subprocess.run(command, check=True, capture_output=True, cwd=TESTS)
    for kind in ("loss", "eval_loss", "eval_acceptance_length"):
        first, second = ([each[kind] for each in log_of(tmp_path / n) if kind in each] for n in ("one", "two"))
        assert len(first) >= 4
        assert first == pytest.approx(second, abs=1e-4)
    assert one.exists()


def interrupted(asked: TrainingSettings, output: Path, when: Callable[[str, int], bool]) -> None:
    """Train until the progress is of some kind, and press Ctrl-C."""
    with pytest.raises(KeyboardInterrupt):
        train_draft(asked, output, interrupt_when(lambda stage, done, *_: when(stage, done)))


def assert_same_weights(*outputs: Path) -> None:
    mine, theirs = (load_file(each / "model.safetensors") for each in outputs)
    assert all(mine[name].equal(theirs[name]) for name in theirs)


@pytest.mark.slow
def test_continuations_of_the_draft_are_gone_on_with_too(folder, tmp_path):
    asked = settings(folder, on_policy=0.5, refresh_every=2, max_new_tokens=6, steps=6)
    whole, cut = train_draft(asked, tmp_path / "whole"), tmp_path / "cut"
    interrupted(asked, cut, lambda _, done: done == 5)
    assert_same_weights(train_draft(asked, cut), whole)


def test_an_interruption_leaves_what_can_be_gone_on_with(folder, trained, tmp_path):
    output = tmp_path / "draft"
    interrupted(settings(folder), output, lambda _, done: done == 5)
    with pytest.raises(ValueError, match="holds an unfinished training with steps 8, but now it is 9"):
        train_draft(settings(folder, steps=9), output)
    half = part_path(output) / "checkpoints" / "checkpoint-6"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"cut off")
    interrupted(settings(folder), output, lambda stage, _: stage == "Measuring the draft")
    stages: set[str] = set()
    train_draft(settings(folder), output, lambda stage, *_: stages.add(stage))
    assert stages == {"Measuring the start", "Measuring the draft"}  # what is trained is not trained again
    assert_same_weights(output, trained)


def test_a_training_that_diverges_leaves_the_checkpoint_before(folder, tmp_path):
    asked = settings(folder, learning_rate=1e30, evaluate_every=1)
    with pytest.raises(ValueError, match=r"the loss is .* after step 2; what was saved before is whole"):
        train_draft(asked, tmp_path / "draft")
    before = part_path(tmp_path / "draft") / "checkpoints" / "checkpoint-1"
    assert (before / "whole").exists()
    assert all(each.isfinite().all() for each in load_file(before / "model.safetensors").values())


def test_a_full_disk_stops_in_one_line_and_leaves_the_last_checkpoint(folder, tmp_path):
    output = tmp_path / "draft"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(stage: str, done: int, total: int, remark: str) -> None:
        if done == 3:  # after the first checkpoint
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))

    try:
        with pytest.raises(OSError, match="the last checkpoint is whole"):
            train_draft(settings(folder), output, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    checkpoints = part_path(output) / "checkpoints"
    assert (checkpoints / "checkpoint-2" / "whole").exists()
    assert not (checkpoints / "checkpoint-4" / "whole").exists()
    assert train_draft(settings(folder), output) == output


def test_outputs_in_the_way_are_refused(folder, trained, tmp_path):
    with pytest.raises(ValueError, match="is there already"):
        train_draft(settings(folder), trained)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is there already"):
        train_draft(settings(folder), tmp_path / "file")
    part_path(tmp_path / "draft").mkdir()
    (part_path(tmp_path / "draft") / "mine").touch()
    with pytest.raises(ValueError, match="is in the way"):
        train_draft(settings(folder), tmp_path / "draft")
    assert [each.name for each in part_path(tmp_path / "draft").iterdir()] == ["mine"]
    new, asked = tmp_path / "new", settings(folder)
    digest = digest_of(read_documents(asked.data))
    with occupied(part_path(new), asked, digest), pytest.raises(ValueError, match="another process"):
        train_draft(asked, new)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"draft": "ngram"}, "has no weights to train"),
        ({"draft": "bundled:worded"}, "goes with the bundled target"),
        ({"draft": None, "layers": 1, "width": 20}, "width must be a multiple of 8"),
        ({"draft": None, "first_layers": 2}, "must be before layer 2"),
        ({"cache": "/dev/null/rows"}, "cannot write to"),
        ({"max_length": 4}, "there are 0 documents of which anything could be learned"),
        ({"draft": "other"}, r"the vocabularies of target .* differ"),
    ],
)
def test_what_cannot_be_trained_is_refused(folder, tmp_path, monkeypatch, others, message):
    monkeypatch.chdir(tmp_path)
    if others.get("draft") == "other":  # a model of another tokenizer
        LlamaForCausalLM.from_pretrained(folder / "draft").save_pretrained("other")
        tiny_tokenizer("byte_level").save_pretrained("other")
    with pytest.raises(ValueError, match=message):
        train_draft(settings(folder, **others), tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
    assert not part_path(tmp_path / "draft").exists(), "other settings may be tried at once"


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["lk", "cross_entropy", "total_variation"])
def test_a_draft_is_trained_for_the_commonest_tokens_of_its_text(tmp_path, loss):
    settings = TrainingSettings(
        "bundled", "word_problems:split=train", draft="bundled:worded", draft_vocabulary=60, loss=loss, problems=8,
        max_new_tokens=8, steps=2, batch_size=2,
    )  # fmt: skip
    output = train_draft(settings, tmp_path / "draft")
    listed = json.loads((output / "config.json").read_text())["draft_vocabulary"]
    assert len(listed) == 60
    outcome = next(iter(stream(load_pair("bundled", output), EXAMPLES[0].prompt, seed=0)))
    assert set(outcome.proposal.token_ids) <= set(listed)
