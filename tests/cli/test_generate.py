"""`cactus generate`: what Python returns, the prompt, the seed, the warning, and budgets."""

from __future__ import annotations

import io
import json
import re

import pytest

from cactus_decoding import Budget, generate, load_pair, zoo

QUESTION = "Tom has 4 pens and buys 2 boxes of 6 pens. How many pens does he have now?"
PROMPT = f"Question: {QUESTION}\nAnswer:"
SHORT = ("--seed", "3", "--max-new-tokens", "12")
LONGER = "Lily picks 9 pears and eats 2. She buys 3 bags of 4 pears. How many pears does she have now?"
LONGER_PROMPT = f"Question: {LONGER}\nAnswer:"
SPENDER = ("--rule", "clamped:width=2")


def test_json_is_what_python_returns(run):
    code, out, err = run("generate", QUESTION, *SHORT, "--rule", "cactus:delta=0.50", "--top-p", "0.9", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    expected = generate(load_pair(), PROMPT, rule="cactus:delta=0.5", top_p=0.9, seed=3, max_new_tokens=12)
    assert result["text"] == expected.text
    assert result["token_ids"] == expected.token_ids
    assert result["fates"] == expected.fates
    assert result["finish_reason"] == expected.finish_reason == "length"
    given = {"prompt": PROMPT, "rule": "cactus:delta=0.5", "seed": 3, "top_p": 0.9, "stop": [], "target": None}
    assert given.items() <= result["arguments"].items()
    counts = expected.metrics.as_dict()
    assert all(result["metrics"][name] == counts[name] for name in ("steps", "relaxed", "acceptance_length"))


def test_what_auto_decided_by_is_told(run):
    asked = ("generate", QUESTION, *SHORT, "--num-speculative-tokens", "auto")
    told = json.loads(run(*asked, "--json")[1])["pass_times"]
    assert ".json" in told["source"]
    assert told["target"][0][0] == 1
    assert "Proposed what pays by pass times" in run(*asked, "--verbose")[2]
    assert json.loads(run("generate", QUESTION, *SHORT, "--json")[1])["pass_times"] is None


def test_the_line_says_why_nothing_was_proposed_and_that_nobody_measured_nats(run):
    line = run("generate", QUESTION, "--num-speculative-tokens", "auto", "--max-new-tokens", "1")[2]
    assert "; nothing was proposed: it did not seem to pay here; 'cactus tune' shows why; " in line
    line = run("generate", LONGER, *SPENDER, "--seed", "3")[2]
    assert re.search(r"; [1-9]\d* relaxed; nats not measured \(--budget inf measures them\); ", line)
    line = run("generate", LONGER, *SPENDER, "--seed", "3", "--budget", "inf")[2]
    assert re.search(r"; \d+ relaxed; \d\.\d+ nats; ", line)


def test_it_says_that_passes_are_timed_once(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("cactus_decoding.core.drafting.measuring._KNOWN", {})
    asked = ("generate", QUESTION, "--num-speculative-tokens", "auto", "--max-new-tokens", "3")
    told = [run(*asked)[2].count("Timing passes (a few seconds, once) …\n") for _ in range(2)]
    assert told == [1, 0]


def test_a_drawn_seed_is_told_and_repeats_the_text(run):
    first = json.loads(run("generate", QUESTION, "--json", "--max-new-tokens", "20")[1])
    seed = str(first["arguments"]["seed"])
    again = json.loads(run("generate", QUESTION, "--json", "--max-new-tokens", "20", "--seed", seed)[1])
    assert first["token_ids"] == again["token_ids"]


def test_only_the_text_goes_to_stdout(run):
    code, out, err = run("generate", QUESTION, "--seed", "5", "--stop", "\n", "--stop", "####")
    assert code == 0
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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--protect", "digits"), "the lossless rule relaxes nothing, so there is nothing to protect"),
        (("--rule", "clamped:width=1", "--temperature", "0"), "at temperature 0 clamped:width=1.0 changes nothing"),
        (("--rule", "relaxed_greedy:margin=1", "--temperature", "0"), ""),
        (("--rule", "clamped:width=1", "--protect", "digits"), ""),
    ],
)
def test_what_changes_nothing_is_said(run, options, said):
    code, _, err = run("generate", QUESTION, *SHORT, "--json", *options)
    assert code == 0
    assert said in err
    assert ("note" in err) == bool(said)


@pytest.mark.parametrize(
    ("given", "options", "prompt"),
    [
        (QUESTION, [], PROMPT),
        (f" {QUESTION}\n", [], PROMPT),
        (f"Question: {QUESTION}", [], PROMPT),
        (QUESTION.replace(" and", "\n  and"), [], PROMPT),  # as the playground does
        (PROMPT, [], PROMPT),
        (PROMPT + " First,", [], PROMPT + " First,"),
        (QUESTION, ["--raw"], QUESTION),
        ("", ["--raw"], ""),
        (QUESTION, ["--target", str(zoo.path("target")), "--draft", "ngram"], QUESTION),
    ],
)
def test_questions_to_the_bundled_pair_are_wrapped(run, given, options, prompt):
    out = run("generate", given, *SHORT, "--json", *options)[1]
    assert json.loads(out)["arguments"]["prompt"] == prompt


def test_the_prompt_may_come_from_standard_input(run, monkeypatch):
    for given, options, prompt in ((QUESTION + "\n", [], PROMPT), ("Zoë\n", ["--raw"], "Zoë\n")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        assert json.loads(run("generate", "-", *SHORT, "--json", *options)[1])["arguments"]["prompt"] == prompt


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ([], True),
        (["--top-p", "0.95"], False),
        (["--top-k", "20"], False),
        (["--min-p", "0.1"], False),
        (["--temperature", "0"], False),
        (["--rule", "lossless"], False),
        (["--rule", "cactus:delta=1,max_ratio=10"], False),
    ],
)
def test_cactus_without_truncation_warns_in_one_line(run, options, warned):
    _, out, err = run("generate", QUESTION, *SHORT, "--json", "--rule", "cactus:delta=1", *options)
    assert json.loads(out)
    assert len([line for line in err.splitlines() if "warning" in line]) == warned


def test_json_says_what_was_spent_and_left(run):
    code, out, err = run("generate", LONGER, *SPENDER, "--budget", "0.02", "--seed", "3", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    expected = generate(load_pair(), LONGER_PROMPT, rule="clamped:width=2", budget=0.02, seed=3)
    assert result["token_ids"] == expected.token_ids
    assert result["budget_left"] == expected.budget_left == 0.02 - result["metrics"]["nats"]
    assert result["metrics"]["fell_back"] == expected.metrics.fell_back > 0
    assert result["arguments"]["budget_nats"] == 0.02


def test_the_shift_and_the_length_to_spread_it_over(run):
    arguments = (*SPENDER, "--max-shift", "0.1", "--expected-tokens", "60", "--seed", "3", "--json")
    result = json.loads(run("generate", LONGER, *arguments)[1])
    budget = Budget(max_shift=0.1, expected_tokens=60)
    expected = generate(load_pair(), LONGER_PROMPT, rule="clamped:width=2", budget=budget, seed=3)
    assert result["token_ids"] == expected.token_ids
    assert result["arguments"]["budget_nats"] == budget.limit


def test_an_infinite_budget_measures_and_is_strict_json(run):
    out = run("generate", LONGER, *SPENDER, "--budget", "inf", "--seed", "3", "--json")[1]
    result = json.loads(out, parse_constant=pytest.fail)
    assert result["budget_left"] is None
    assert result["metrics"]["nats"] > 0


def test_the_table_shows_the_budget_only_where_there_is_one(run):
    asked = ("generate", LONGER, "--seed", "3", "--verbose")
    with_budget = run(*asked, *SPENDER, "--max-shift", "0.1")[2]
    for words in ("\nnats ", "\nbudget_left ", "of 0.02 nats: moves no event by more than 0.1", "\nfell_back "):
        assert words in with_budget
    assert "\nnats " not in run(*asked, *SPENDER)[2]
    measured = run(*asked, "--rule", "relaxed_greedy:margin=1", "--temperature", "0")[2]
    assert "\nnats " in measured
    assert "\nbudget_left " not in measured


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


def test_one_of_several_answers(run):
    code, out, err = run("generate", QUESTION, "--choices", "3 pens, 4 pens", "--seed", "1")
    assert (code, out.strip() in ("3 pens", "4 pens")) == (0, True)
    assert "log-probability" in err
    told = json.loads(run("generate", QUESTION, "--choices", '["3 pens", "4, or 5"]', "--seed", "1", "--json")[1])
    assert [each["choice"] for each in told["choices"]] == ["3 pens", "4, or 5"]
    assert sum(each["probability"] for each in told["choices"]) == pytest.approx(1)


def test_a_mistake_about_forms_is_one_sentence(run, tmp_path):
    file = tmp_path / "schema.json"
    file.write_text("{")
    wrong = tmp_path / "person.json"
    wrong.write_text('{"type": "object", "properties": {"name": {"type": "strng"}}}')
    for options, said in (
        (["--json-schema", str(file)], "must be a JSON schema, but is no JSON"),
        (["--json-schema", str(tmp_path / "none")], "cannot read"),
        (["--json-schema", str(wrong)], f"the JSON schema of {wrong}: type at #/properties/name must be one of array"),
        (["--json-schema", str(file), "--regex", "a"], "--json-schema and --regex exclude each other"),
        (["--regex", "(a"], "cannot read the regex"),
        (["--regex", "a", "--trace", str(tmp_path / "t")], "--trace goes neither with --json-schema nor with --regex"),
        (["--choices", "a,b", "--trace", str(tmp_path / "t")], "--trace goes neither"),
        (["--choices", "a,b", "--regex", "a"], "--choices goes neither with --json-schema nor with --regex"),
        (["--choices", "a,,b"], "--choices must be 1 to 256 texts that are not empty"),
        (["--choices", "[1]"], "--choices must be a list of texts, but is [1]"),
        (["--choices", '["a"'], "--choices must be texts with commas between them, or a JSON list"),
        (["--choices", "a,a"], "--choices must be different texts, but has 'a' twice"),
    ):
        code, out, err = run("generate", QUESTION, *options)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
