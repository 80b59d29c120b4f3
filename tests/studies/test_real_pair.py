"""The study that regenerates docs/studies/tables/real_pair.md, on bundled models as GGUF files."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from support.scripts import ROOT, copied_page, run_script
from transformers import AutoModelForCausalLM

from cactus_decoding import zoo
from cactus_decoding.core.audit import audit
from cactus_decoding.core.models.tokenizers import as_chat_prompt
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.evaluation.tasks.benchmarks import IN_A_BOX
from cactus_decoding.lab.frontier.recorded_rows import read_rows
from scripts.results import read
from studies.real_pair.collect import read_answers
from studies.real_pair.page import choices
from studies.real_pair.run import CHOOSING, RESULTS, TASKS, kinds_of

PAGE = ROOT / "docs" / "studies" / "tables" / "real_pair.md"
QUESTION = "Ann has 3 apples and buys {} more. How many apples does Ann have?"
PRECISE = ":cache=float32"
collect = partial(run_script, "studies.real_pair.collect")
run = partial(run_script, "studies.real_pair.run")


@pytest.fixture(scope="module")
def asked(tmp_path_factory, gguf) -> tuple[Path, Path, Path]:
    """Return the folder of collected answers, and the two files."""
    folder = tmp_path_factory.mktemp("real_pair")
    problems = ({"question": QUESTION.format(i), "answer": f"#### {3 + i}"} for i in range(1, 9))
    (folder / "gsm8k.jsonl").write_text("".join(json.dumps(each) + "\n" for each in problems))
    target, draft = gguf("target"), gguf("worded")
    given = (
        "--target",
        f"{target}{PRECISE}",
        "--draft",
        f"{draft}{PRECISE}",
        "--task",
        f"gsm8k:path={folder / 'gsm8k.jsonl'}",
        "--prompt-tokens",
        320,
    )
    done = collect(folder / "answers", *given, "--max-new-tokens", 48)
    assert done.returncode == 0, done.stderr
    times = {path: path.stat().st_mtime_ns for path in (folder / "answers").glob("gsm8k-*")}
    assert len(times) == 8
    again = collect(folder / "answers", *given, "--max-new-tokens", 48)
    assert again.returncode == 0, again.stderr
    assert times == {path: path.stat().st_mtime_ns for path in times}, "nothing is answered twice"
    return folder, target, draft


@pytest.mark.slow
def test_rows_are_those_of_the_models_at_each_position_of_the_targets_text(asked) -> None:
    folder, _, _ = asked
    answers = read_answers(folder / "answers", TASKS)
    tokenizer = tokenizer_of(zoo.BUNDLED)
    prompt = as_chat_prompt(tokenizer, QUESTION.format(1) + IN_A_BOX)
    count = int((answers.problem == 0).sum())
    ids = torch.tensor([[*tokenizer(prompt).input_ids, *answers.written[:count].tolist()]])
    load = partial(AutoModelForCausalLM.from_pretrained, dtype=torch.float32)
    models = (load(zoo.path(name)) for name in ("target", "worded"))
    rows = [model(ids).logits[0, -count - 1 : -1].detach().softmax(-1) for model in models]
    exact = audit("lossless", *rows).acceptance
    for chunk in answers.chunks(SamplingParams()):
        here = chunk.places < count
        found = audit("lossless", chunk.target[here], chunk.draft[here]).acceptance
        assert (found - exact[chunk.places[here]]).abs().max() < 1e-4


@pytest.mark.slow
def test_a_small_study_runs_to_its_tables(asked, tmp_path: Path) -> None:
    folder, target, _ = asked
    page, results = copied_page(PAGE, tmp_path), tmp_path / "rows.json"
    given = ("--answers", folder / "answers", "--target", target)
    rows = tmp_path / "rows.safetensors"
    done = run(*given, "--rows", rows, "--results", results, "--page", page)
    assert done.returncode == 0, done.stderr
    result = json.loads(results.read_text())
    assert result["collected"]["settings"]["draft"].startswith("worded")
    assert {each["task"] for each in result["rejections"]} == {"gsm8k", "all"}
    for share in zip(*result["rejections"][-1]["classes"].values(), strict=True):
        assert sum(share) == pytest.approx(1, abs=1e-3)
    by_rule = {each["rule"]: each["acceptance"][0] for each in result["samplings"]["plain"] if not each["protect"]}
    assert by_rule["lossless"] < by_rule["clamped:width=1.0"] < by_rule["clamped:width=5.0"]
    assert "temperature 1,top_k:k=10,code symbols," in (tmp_path / "real_pair.csv").read_text()
    assert read_rows(rows).positions == sum(each["positions"] for each in result["rejections"][:-1])


def test_what_is_advised_elsewhere_is_what_was_measured() -> None:
    result = read(RESULTS)
    assert choices(result) in CHOOSING.read_text()
    best = json.loads((ROOT / "benchmarks/results/real_pair_bfloat16.json").read_text())["summary"]["best"]
    readme = (ROOT / "README.md").read_text()
    value, low, high = (f"{x:.2f}" for x in best["clamped 2"]["over_lossless_at_its_best"])
    said = rf"`clamped:width=2` \| .*\[{value} times\]\(\S+ the tokens per second of lossless at its best "
    assert re.search(rf"{said}\({low} to {high}\)", readme)
    again = json.loads((ROOT / "benchmarks/results/real_pair_bfloat16_again.json").read_text())["summary"]["best"]
    value, low, high = (f"{x:.2f}" for x in again["clamped 2"]["over_lossless_at_its_best"])
    assert f"on a slower machine {value} times ({low} to {high})" in readme


def test_every_token_has_one_class() -> None:
    words = Vocabulary((" cats", "x1", " +", "\n", "(", ".", "<eos>"), frozenset([6]))
    assert kinds_of(words).tolist() == [1, 0, 3, 2, 4, 5, 6]
