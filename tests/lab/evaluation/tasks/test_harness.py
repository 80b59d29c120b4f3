"""lm-evaluation-harness asks and scores; our engines answer. The task is defined here, as the hub is out of reach."""

from __future__ import annotations

import json

import pytest
from lm_eval.api.registry import get_model
from support.scripted_server import scripted

from cactus_decoding import Cactus
from cactus_decoding.lab.evaluation.chat import tokenizer_of
from cactus_decoding.lab.evaluation.runs.results import read_results
from cactus_decoding.lab.evaluation.tasks.harness import CactusLM
from cactus_decoding.zoo.word_problems import word_problems

pytestmark = [
    pytest.mark.usefixtures("settings_of_the_libraries"),
    # the harness and what it imports are not ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

TASK = {"dataset_path": "json", "test_split": "test", "doc_to_text": "{{prompt}}"}
GENERATES = TASK | {
    "output_type": "generate_until",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["<eos>", "\n\n"]},
    "filter_list": [
        {"name": "hashes", "filter": [
            {"function": "regex", "regex_pattern": "#### (-?[0-9]+)"}, {"function": "take_first"},
        ]},
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
SCORES = TASK | {"output_type": "multiple_choice", "doc_to_target": 0, "doc_to_choice": ["1", "2"],
                 "metric_list": [{"metric": "acc"}]}  # fmt: skip


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """A folder with a task that generates and one that scores given continuations."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data, problems = tmp_path / "data.jsonl", word_problems("test", seed=0)
    rows = [{"prompt": each.prompt, "answer": str(each.answer)} for each in (next(problems) for _ in range(4))]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, task in (("local_sums", GENERATES), ("local_choices", SCORES)):
        task = task | {"task": name, "dataset_kwargs": {"data_files": {"test": str(data)}}}
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # which YAML is too
    return folder


@pytest.mark.slow
def test_a_generation_task_is_answered_under_each_rule(succeed, tasks, tmp_path):
    out = tmp_path / "results.jsonl"
    arguments = ("eval", "--lm-eval", "local_sums", "--lm-eval-path", str(tasks), "--rule", "lossless", "--rule",
                 "clamped:width=0.5", "--problems", "3", "--threads", "1", "--output", str(out))  # fmt: skip
    succeed(*arguments)
    harness = read_results(out)
    assert [result.config.task for result in harness] == ["lm_eval:local_sums"] * 2
    succeed("eval", "--rule", "lossless", "--problems", "3", "--threads", "1", "--output", str(out))
    *_, ours = read_results(out)  # the same problems, prompts and seeds
    for column in ("right", "generated", "accepted"):
        assert harness[0].answers[column] == ours.answers[column]
    assert sum(harness[0].answers["right"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("chat", ["--chat", "--no-chat"])
def test_a_server_is_asked_what_the_harness_would_ask_and_the_harness_scores(run, tasks, tmp_path, chat):
    problems, out, seen = word_problems("test", seed=0), tmp_path / "results.jsonl", []
    prompts = {each.prompt: each.answer for each in (next(problems) for _ in range(3))}

    def script(path, body):
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        if prompt in prompts:
            seen.append((path, prompt, body["stop"]))
        text = f"#### {prompts.get(prompt, 0) + (prompt == [*prompts][1])}"  # wrong once
        choice = {"delta": {"content": text}} if "messages" in body else {"text": text}
        return [{"choices": [choice | {"finish_reason": "stop"}]}]

    with scripted(script) as address:
        given = "--lm-eval", "local_sums", "--lm-eval-path", str(tasks), "--problems", "3", chat
        code, _, err = run("eval", "--server", address, "--concurrency", "3", *given, "--output", str(out))
    assert code == 0, err
    (result,) = read_results(out)
    assert result.answers["right"] == [True, False, True]
    path = "/v1/chat/completions" if chat == "--chat" else "/v1/completions"
    assert sorted(seen) == sorted((path, prompt, ["<eos>", "\n\n"]) for prompt in prompts)


JUDGE = """
import json

def judged(document, answers):
    return {"acc": int(json.loads(answers[0]) == int(document["answer"])) if answers[0] else 0}
"""


@pytest.mark.slow
def test_an_answer_that_a_task_cannot_judge_is_wrong_and_the_others_are_not_lost(succeed, tasks, tmp_path):
    (tasks / "judge.py").write_text(JUDGE)
    task = json.loads((tasks / "local_sums.yaml").read_text()) | {"metric_list": [{"metric": "acc"}]}
    text = json.dumps({name: value for name, value in task.items() if name != "filter_list"})
    (tasks / "local_sums.yaml").write_text(text[:-1] + ', "process_results": !function judge.judged}')
    problems, out = word_problems("test", seed=0), tmp_path / "results.jsonl"
    prompts = {each.prompt: each.answer for each in (next(problems) for _ in range(4))}
    nasty = iter(("[" * 100_000, "no number", "9" * 5_000))

    def script(path, body):
        right = body["prompt"] == [*prompts][2]
        text = str(prompts[body["prompt"]]) if right else next(nasty) if body["prompt"] in prompts else ""
        return [{"choices": [{"text": text, "finish_reason": "stop"}]}]

    with scripted(script) as address:
        given = "--lm-eval", "local_sums", "--lm-eval-path", str(tasks), "--problems", "4", "--no-chat"
        succeed("eval", "--server", address, *given, "--output", str(out))
    (result,) = read_results(out)
    assert result.answers["right"] == [False, False, True, False]


@pytest.mark.slow
def test_tasks_that_score_and_unknown_ones_are_refused(refused, tasks, tmp_path):
    file = tasks / "local_choices.yaml"
    right, wrong = file.read_text(), file.read_text().replace('_target": 0', '_target": 9')
    for names, text, said in (
        ("local_choices", right, "only tasks that generate can be compared"),
        ("local_choices", wrong, "lm-evaluation-harness cannot load local_choices: "),
        ("local_sums,nothing_like_it", right, "unknown task of lm-evaluation-harness: nothing_like_it"),
    ):
        file.write_text(text)
        out = ("--lm-eval-path", str(tasks), "--output", str(tmp_path / "results.jsonl"))
        assert said in refused("eval", "--lm-eval", names, *out)


def test_the_model_class_is_registered_and_reads_model_args():
    assert get_model("cactus") is CactusLM
    model = CactusLM.create_from_arg_string("rule=cactus:delta=0.5,max_ratio=3.0,top_p=0.9,num_speculative_tokens=4")
    assert model._config.rule == str(Cactus(0.5, max_ratio=3.0))
    assert (model._config.request.sampling.top_p, model._config.num_speculative_tokens) == (0.9, 4)
    for arguments, problem in (
        ("speed=3", "'speed=3' is not argument=value"),
        ("seed=x", "seed must be of type int"),
        ("rule=magic", "unknown rule"),
    ):
        with pytest.raises(ValueError, match=problem):
            CactusLM.create_from_arg_string(arguments)


def test_chats_are_written_by_the_target_s_template_and_scoring_is_refused():
    model = CactusLM.create_from_arg_string("")
    said = [{"role": "user", "content": "How many?"}]
    tokenizer = tokenizer_of("bundled")
    assert model.apply_chat_template(said).text(tokenizer) == "Question: How many?\nAnswer:"
    begun = [*said, {"role": "assistant", "content": " So"}]
    asked = model.apply_chat_template(begun, add_generation_prompt=False)
    assert asked.text(tokenizer) == "Question: How many?\nAnswer: So"
    assert model.tokenizer_name == "bundled"
    with pytest.raises(ValueError, match="no place for a system message"):
        model.apply_chat_template([{"role": "system", "content": "Be brief."}, *said]).text(tokenizer)
    for score in (model.loglikelihood, model.loglikelihood_rolling):
        with pytest.raises(ValueError, match="which no acceptance rule changes"):
            score([])
