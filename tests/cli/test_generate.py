"""`cactus generate`: what Python returns, the prompt, the seed, notes, budgets, traces, and a draft that learns."""

from __future__ import annotations

import io
import json
import re

import pytest
from support.bundled_target import save_target
from support.tables import all_of

from cactus_decoding import Budget, generate, load_pair, parse_rule, zoo
from cactus_decoding.lab.tracing import read_trace

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"
SHORT = ("--seed", "3", "--max-new-tokens", "12")
LONGER = "Lily picks 9 pears and eats 2. She buys 3 bags of 4 pears. How many pears does she have now?"
LONGER_PROMPT = f"Question: {LONGER}\nAnswer:"
SPENDER = ("--rule", "clamped:width=2")


@all_of("question, options, settings", [
    (QUESTION, ("--rule", "cactus:delta=0.50", "--top-p", "0.9"), {"rule": "cactus:delta=0.5", "top_p": 0.9}),
    (LONGER, (*SPENDER, "--budget", "0.02"), {"rule": "clamped:width=2", "budget": 0.02}),
    (LONGER, (*SPENDER, "--max-shift", "0.1", "--expected-tokens", "60"),
     {"rule": "clamped:width=2", "budget": Budget(max_shift=0.1, expected_tokens=60)}),
])  # fmt: skip
def test_json_is_what_python_returns(run, question, options, settings):
    code, out, err = run("generate", question, "--seed", "3", *options, "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    expected = generate(load_pair(), f"Question: {question}\nAnswer:", seed=3, **settings)
    assert (result["text"], result["token_ids"]) == (expected.text, expected.token_ids)
    assert result["fates"] == expected.fates
    assert result["finish_reason"] == expected.finish_reason
    counts = expected.metrics.as_dict()
    for name in ("steps", "relaxed", "acceptance_length", "fell_back"):
        assert result["metrics"][name] == counts[name]
    assert result["budget_left"] == expected.budget_left
    budget = settings.get("budget")
    given = {"prompt": f"Question: {question}\nAnswer:", "rule": str(parse_rule(settings["rule"])), "seed": 3,
             "budget_nats": getattr(budget, "limit", budget), "stop": [], "target": None}  # fmt: skip
    assert given.items() <= result["arguments"].items()


def test_a_drawn_seed_repeats_the_text_and_an_infinite_budget_measures_in_strict_json(run):
    asked = ("generate", LONGER, *SPENDER, "--budget", "inf", "--json")
    measured = json.loads(run(*asked)[1], parse_constant=pytest.fail)
    assert measured["budget_left"] is None
    assert measured["metrics"]["nats"] > 0
    again = json.loads(run(*asked, "--seed", str(measured["arguments"]["seed"]))[1])
    assert again["token_ids"] == measured["token_ids"]


def test_what_auto_decided_by_is_told(run, tmp_path, monkeypatch):
    asked = ("generate", QUESTION, *SHORT, "--num-speculative-tokens", "auto")
    told = json.loads(run(*asked, "--json")[1])["pass_times"]
    assert ".json" in told["source"]
    assert told["target"][0][0] == 1
    assert "Proposed what pays by pass times" in run(*asked, "--verbose")[2]
    assert json.loads(run("generate", QUESTION, *SHORT, "--json")[1])["pass_times"] is None
    line = run("generate", QUESTION, "--num-speculative-tokens", "auto", "--max-new-tokens", "1")[2]
    assert "; nothing was proposed: it did not seem to pay here; 'cactus tune' shows why; " in line
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("cactus_decoding.core.drafting.measuring._KNOWN", {})
    assert [run(*asked)[2].count("Timing passes (a few seconds, once) …\n") for _ in range(2)] == [1, 0]


def test_only_the_text_goes_to_stdout(succeed):
    out, err = succeed("generate", QUESTION, "--seed", "5", "--stop", "\n", "--stop", "####")
    assert out == generate(load_pair(), PROMPT, seed=5, stop=["\n", "####"]).text + "\n"
    assert re.fullmatch(r"\n\d+ tokens in \d+ steps, \d\.\d per step, \d+\.\d s; seed 5\n", err)


def test_a_line_or_a_table_says_what_a_response_took(run):
    arguments = (LONGER, *SPENDER, "--budget", "0.02", "--protect", "digits", "--max-new-tokens", "20", "--seed", "3")
    line = run("generate", *arguments)[2].strip()
    assert re.search(r"; \d+ relaxed; 0\.0\d+ nats of 0\.02; \d+ positions? protected; cut by --max-new-tokens", line)
    assert line.endswith("; seed 3")
    table = run("generate", *arguments, "--verbose")[2]
    counts = generate(load_pair(), LONGER_PROMPT, rule="clamped:width=2", seed=3, max_new_tokens=20).metrics.as_dict()
    shown = {each.split()[0] for each in table.strip().splitlines()[1:]} - {"seed", "budget_left"}
    assert shown <= counts.keys()
    assert {"acceptance_length", "acceptance_rate", "accepted_per_step", "relaxed", "tokens_per_second"} <= shown


@all_of("options, said", [
    (("--protect", "digits"), "note: the lossless rule relaxes nothing, so there is nothing to protect"),
    (("--rule", "clamped:width=1", "--temperature", "0"), "at temperature 0 clamped:width=1.0 changes nothing"),
    (("--rule", "relaxed_greedy:margin=1", "--temperature", "0"), ""),
    (("--rule", "clamped:width=1", "--protect", "digits"), ""),
    # cactus warns without truncation
    (("--rule", "cactus:delta=1"), "warning"),
    (("--rule", "cactus:delta=1", "--top-p", "0.95"), ""),
    (("--rule", "cactus:delta=1", "--top-k", "20"), ""),
    (("--rule", "cactus:delta=1", "--min-p", "0.1"), ""),
    (("--rule", "cactus:delta=1,max_ratio=10"), ""),
])  # fmt: skip
def test_what_a_user_may_not_know_is_said_in_one_line(succeed, options, said):
    out, err = succeed("generate", QUESTION, *SHORT, "--json", *options)
    assert json.loads(out)
    assert said in err
    assert err.count("\n") == bool(said)


@all_of("given, options, prompt", [
    (f" {QUESTION}\n", [], PROMPT),
    (f"Question: {QUESTION}", [], PROMPT),
    (QUESTION.replace(" and", "\n  and"), [], PROMPT),  # as the playground does
    (PROMPT, [], PROMPT),
    (PROMPT + " First,", [], PROMPT + " First,"),
    (QUESTION, ["--raw"], QUESTION),
    ("", ["--raw"], ""),
    (QUESTION, ["--target", str(zoo.path("target")), "--draft", "ngram"], QUESTION),
])  # fmt: skip
def test_questions_to_the_bundled_pair_are_wrapped(run, given, options, prompt):
    out = run("generate", given, *SHORT, "--json", *options)[1]
    assert json.loads(out)["arguments"]["prompt"] == prompt


def test_the_prompt_may_come_from_standard_input(run, monkeypatch):
    for given, options, prompt in ((QUESTION + "\n", [], PROMPT), ("Zoë\n", ["--raw"], "Zoë\n")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert json.loads(run("generate", "-", *SHORT, "--json", *options)[1])["arguments"]["prompt"] == prompt


def test_line_and_table_show_nats_and_budget_only_where_there_are_some(run):
    asked = ("generate", LONGER, "--seed", "3")
    line = run(*asked, *SPENDER)[2]
    assert re.search(r"; [1-9]\d* relaxed; nats not measured \(--budget inf measures them\); ", line)
    assert re.search(r"; \d+ relaxed; \d\.\d+ nats; ", run(*asked, *SPENDER, "--budget", "inf")[2])
    asked += ("--verbose",)
    with_budget = run(*asked, *SPENDER, "--max-shift", "0.1")[2]
    for words in ("\nnats ", "\nbudget_left ", "of 0.02 nats: moves no event by more than 0.1", "\nfell_back "):
        assert words in with_budget
    assert "\nnats " not in run(*asked, *SPENDER)[2]
    measured = run(*asked, "--rule", "relaxed_greedy:margin=1", "--temperature", "0")[2]
    assert ("\nnats " in measured, "\nbudget_left " in measured) == (True, False)


def test_answers_of_a_form(run, tmp_path):
    schema = {"type": "object", "properties": {"n": {"enum": [3, 4]}}, "required": ["n"], "additionalProperties": False}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    code, out, _ = run("generate", QUESTION, "--json-schema", str(file), "--seed", "1")
    assert (code, json.loads(out)["n"] in (3, 4)) == (0, True)
    told = json.loads(run("generate", QUESTION, "--json-schema", str(file), "--seed", "1", "--json")[1])
    assert told["text"] + "\n" == out
    assert told["arguments"]["response_format"]["json_schema"]["schema"] == schema
    assert run("generate", QUESTION, "--regex", "[a-c]{4}", "--seed", "1")[1].strip("abc") == "\n"
    code, out, err = run("generate", QUESTION, "--choices", "3 pens, 4 pens", "--seed", "1")
    assert (code, out.strip() in ("3 pens", "4 pens")) == (0, True)
    assert "log-probability" in err
    told = json.loads(run("generate", QUESTION, "--choices", '["3 pens", "4, or 5"]', "--seed", "1", "--json")[1])
    assert [each["choice"] for each in told["choices"]] == ["3 pens", "4, or 5"]
    assert sum(each["probability"] for each in told["choices"]) == pytest.approx(1)


def test_generate_with_a_trace_writes_the_same_text(run, tmp_path):
    path, page = tmp_path / "t.jsonl", tmp_path / "t.html"
    arguments = ("generate", QUESTION, "--seed", "5", "--stop", "####", "--rule", "cactus:delta=0.5", "--top-p", "0.9")
    code, out, err = run(*arguments, "--trace", str(path))
    assert (code, out) == run(*arguments)[:2]
    assert f"wrote {path}" in err
    made = read_trace(path)
    assert made.text + "\n" == out
    assert made.header.prompt == PROMPT
    assert (made.header.request.seed, made.header.target) == (5, "bundled")
    assert run("trace", str(path)) == (0, f"wrote {page}\n", "")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert sorted(tmp_path.iterdir()) == [page, path]
    code, told, err = run(*arguments, "--json", "--trace", str(path))
    assert (code, err) == (0, "")
    plain, result = json.loads(run(*arguments, "--json")[1]), json.loads(told)
    assert result["token_ids"] == plain["token_ids"] == read_trace(path).token_ids
    assert result["fates"] == plain["fates"]


BRIEF = ("--max-new-tokens", "3", "--seed", "1", "--json")
TEMPLATE = "{% for message in messages %}Question: {{ message.content }}\nAnswer:{% endfor %}"


@pytest.fixture
def times_are_known(monkeypatch):
    """Have no line say that passes are timed."""
    monkeypatch.setattr("cactus_decoding.core.pair.Pair.pass_times", lambda *_: {"source": "given"})


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: save_target(folder / name, template) for name, template in (("base", None), ("chat", TEMPLATE))}


def test_a_target_that_is_named_alone_drafts_by_look_up_and_says_so(run, target, times_are_known):
    code, out, err = run("generate", "a b a b a b", "--target", target["base"], *BRIEF)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("cactus: note: no --draft is given, so proposals are looked up in the text (suffix)")
    assert json.loads(out)["arguments"]["draft"] == "suffix"
    assert run("generate", "a b a b a b", "--target", target["base"], "--draft", "ngram", *BRIEF)[2] == ""


def test_a_chat_model_that_continues_plain_text_says_so(run, target, times_are_known):
    ask = ("generate", QUESTION, "--target", target["chat"], "--draft", "ngram", *BRIEF)
    code, _, err = run(*ask)
    assert (code, err.count("\n")) == (0, 1)
    assert "the target has a chat template" in err
    assert "--chat" in err
    assert [run(*ask, how)[2] for how in ("--chat", "--raw")] == ["", ""]


@all_of("question, unlike", [
    ("Why is the sky blue?", "no story has 'why', 'sky', 'blue'"),
    ("How many pens does Tom have?", "it has no number"),
    ("Tom has 4000 pens and gives away 3 pens. How many pens does he have left?", "no story has 4000"),
])  # fmt: skip
def test_the_bundled_models_say_when_a_question_is_not_of_their_kind(run, question, unlike):
    code, _, err = run("generate", question, *BRIEF)
    assert (code, err.count("\n")) == (0, 1)
    assert f"this is none ({unlike})" in err
    assert run("generate", question, "--raw", *BRIEF)[2] == ""
