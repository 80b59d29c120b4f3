"""lm-evaluation-harness asks and scores; our engines answer. The task is defined here, as the hub is out of reach."""

from __future__ import annotations

import json

import pytest
from support.scripted_server import scripted

from cactus_decoding.lab.evaluation.runs.results import read_results
from cactus_decoding.zoo.word_problems import word_problems

pytestmark = [
    pytest.mark.usefixtures("settings_of_the_libraries"),
    # the harness and what it imports are not ours to mend
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]

GENERATES = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {output}
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{answer}}}}"
{choices}
generation_kwargs: {{until: ["<eos>", "\\n\\n"]}}
filter_list:
  - name: hashes
    filter:
      - {{function: regex, regex_pattern: "#### (-?[0-9]+)"}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """A folder with a task that generates and one that scores given continuations."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data, problems = tmp_path / "data.jsonl", word_problems("test", seed=0)
    rows = [{"prompt": each.prompt, "answer": str(each.answer)} for each in (next(problems) for _ in range(4))]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    folder = tmp_path / "tasks"
    folder.mkdir()
    for name, output, choices in (
        ("local_sums", "generate_until", ""),
        ("local_choices", "multiple_choice", 'doc_to_choice: ["1", "2"]'),
    ):
        text = GENERATES.format(name=name, data=data, output=output, choices=choices)
        if output == "multiple_choice":
            text = text.split("generation_kwargs")[0].replace('"{{answer}}"', "0") + "metric_list:\n  - {metric: acc}\n"
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.slow
def test_a_generation_task_is_answered_under_each_rule(run, tasks, tmp_path):
    out = tmp_path / "results.jsonl"
    arguments = ("eval", "--lm-eval", "local_sums", "--lm-eval-path", str(tasks), "--rule", "lossless", "--rule",
                 "clamped:width=0.5", "--problems", "3", "--threads", "1", "--output", str(out))  # fmt: skip
    code, _, err = run(*arguments)
    assert code == 0, err
    harness = read_results(out)
    assert [result.config.task for result in harness] == ["lm_eval:local_sums"] * 2
    code, _, err = run("eval", "--rule", "lossless", "--problems", "3", "--threads", "1", "--output", str(out))
    assert code == 0, err
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


@pytest.mark.slow
def test_tasks_that_score_and_unknown_ones_are_refused(run, tasks, tmp_path):
    out = ("--lm-eval-path", str(tasks), "--output", str(tmp_path / "results.jsonl"))
    code, _, err = run("eval", "--lm-eval", "local_choices", *out)
    assert code == 2
    assert "only tasks that generate can be compared" in err
    (tasks / "local_choices.yaml").write_text(
        (tasks / "local_choices.yaml").read_text().replace("_target: 0", "_target: 9")
    )
    code, _, err = run("eval", "--lm-eval", "local_choices", *out)
    assert code == 2
    assert "lm-evaluation-harness cannot load local_choices: " in err
    code, _, err = run("eval", "--lm-eval", "local_sums,nothing_like_it", *out)
    assert code == 2
    assert "unknown task of lm-evaluation-harness: nothing_like_it" in err
