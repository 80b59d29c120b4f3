"""Evaluations of servers: the texts of this process, whatever is killed meanwhile, and mistakes in one sentence."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from support.llama_server import serving
from support.result_files import config_of
from support.scripted_server import events, scripted
from support.tables import all_of

from cactus_decoding.core.request import Request
from cactus_decoding.engines.openai import client as client_module
from cactus_decoding.engines.openai.client import RefusedError, Reply, ServerClient
from cactus_decoding.lab.evaluation.engines.engine import AuditedCosts
from cactus_decoding.lab.evaluation.engines.server import ServerEngine, counts_of
from cactus_decoding.lab.evaluation.runs.results import journal_of, read_results
from cactus_decoding.lab.evaluation.runs.summary import summarise
from cactus_decoding.lab.evaluation.runs.workers import in_turns
from cactus_decoding.lab.evaluation.tasks.sources import parse_task

pytestmark = pytest.mark.usefixtures("settings_of_the_libraries")

SMALL = ("--problems", "3", "--max-new-tokens", "40")


@pytest.fixture(scope="module")
def server(gguf):
    """Run a server of float32, in which no answer depends on what is read beside it."""
    target, draft = f"{gguf('target')}:context_size=512,cache=float32", f"{gguf('worded')}:cache=float32"
    asked = ("--threads", "1", "--parallel", "4", "--num-speculative-tokens", "4", "--alias", "ours", "--port", "0")
    with serving(target, "--draft", draft, *asked) as running:
        yield f"http://127.0.0.1:{running.port}"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(client_module, "MAX_PAUSE", 0.5)


def columns(path, *names: str) -> dict[str, list]:
    return {result.config.rule: [result.answers[name] for name in names] for result in read_results(path)}


@pytest.mark.slow
@pytest.mark.parametrize("chat", ["--no-chat", "--chat"])
def test_greedy_texts_are_those_of_this_process(run, succeed, server, gguf, tmp_path, chat):
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    models = "--target", f"{gguf('target')}:cache=float32", "--draft", f"{gguf('worded')}:cache=float32"
    same = (*SMALL, chat, "--temperature", "0", "--num-speculative-tokens", "4")
    assert run("eval", *models, *same, "--threads", "1", "--output", str(here))[0] == 0
    printed, err = succeed("eval", "--server", server, "--concurrency", "3", *same, "--output", str(there))
    assert "takes a rule in each request, reports what it did" in err
    assert "ours with its own draft, server, 3 at once" in " ".join(printed.split())
    names = "id", "text", "finish_reason", "right", "steps", "accepted"
    assert columns(here, *names) == columns(there, *names)
    (result,) = read_results(there)
    assert result.config.concurrency == 3
    assert result.provenance["server"] == {
        "address": server, "model": "ours", "rules": "fields", "reports": True, "counts_tokens": True,
    }  # fmt: skip
    assert all(0 < first < all_of_it for first, all_of_it in
               zip(result.answers["first_seconds"], result.answers["seconds"], strict=True))  # fmt: skip


@pytest.mark.slow
def test_rules_budgets_and_protection_reach_the_server(run, succeed, server, tmp_path):
    out = tmp_path / "results.jsonl"
    printed, _ = succeed(
        "eval", "--server", server, "--concurrency", "4", *SMALL, "--rule", "lossless", "--rule", "clamped:width=3",
        "--budget", "1", "--protect", "none", "--protect", "digits", "--output", str(out), "--all",
    )  # fmt: skip
    assert "seconds to first token" in printed
    lossless, relaxed, protected = read_results(out)
    assert {0} == set(lossless.answers["nats"]) == set(lossless.answers["relaxed"])
    assert all(0 < nats <= 1 for nats in relaxed.answers["nats"])
    assert sum(relaxed.answers["relaxed"]) > 0
    assert sum(protected.answers["metered"]) < sum(relaxed.answers["metered"])
    for result in (lossless, relaxed, protected):
        assert (result.column("steps") == result.column("recovered") + result.column("bonus")).all()
    page = tmp_path / "report.html"
    assert run("report", str(out), "--output", str(page))[0] == 0
    assert "seconds to first token" in page.read_text()


def answering(path, body):
    """Answer as a server that knows nothing of rules."""
    return events("So it is #### 5", usage={"completion_tokens": 5})


def honest(path, body):
    """Answer as a server that takes rules beside the other fields, and reports nothing."""
    unknown = set(body) & {"vllm_xargs", "acceptance_report"}
    if unknown or body.get("acceptance_rule", "lossless") not in ("lossless", "clamped:width=1.0"):
        return 400, {"error": {"message": f"not served: {unknown or body['acceptance_rule']}"}}
    return answering(path, body)


@pytest.fixture
def answered(run, tmp_path):
    """The results of a server that reports nothing."""
    out = tmp_path / "results.jsonl"
    with scripted(answering) as address:
        code, printed, err = run("eval", "--server", address, *SMALL, "--no-chat", "--output", str(out))
    assert code == 0, err
    assert "takes no rules" in err
    assert "seconds/" in printed
    assert "tokens/\nstep" not in printed
    return out


def test_a_server_that_reports_nothing_leaves_counts_unknown(succeed, answered, tmp_path):
    (result,) = read_results(answered)
    assert result.answers["generated"] == [5, 5, 5]
    assert all(result.answers[name] == [None] * 3 for name in ("steps", "drafted", "accepted", "recovered", "bonus"))
    succeed("report", str(answered), "--output", str(tmp_path / "report.html"))


def uncounted(path, body):
    """Answer as a server that refuses to be asked for usage, and sends none; each of many chunks is a letter."""
    if "stream_options" in body:
        return 400, {"error": {"message": "unknown field: stream_options"}}
    return [event for event in events(" ".join("So it is #### 5")) if not isinstance(event, dict) or event["choices"]]


def test_where_a_server_counts_no_tokens_the_speed_is_unknown_and_not_low(run, succeed, tmp_path):
    out, page = tmp_path / "results.jsonl", tmp_path / "report.html"
    with scripted(uncounted) as address:
        given = ("--server", address, *SMALL, "--no-chat", "--all", "--output", str(out))
        printed, err = succeed("eval", *given)
    assert "does not say how many tokens an answer has" in err
    (result,) = read_results(out)
    assert result.answers["generated"] == [None] * 3
    assert all(seconds > 0 for seconds in result.answers["seconds"])
    (summary,) = summarise([result])
    assert summary.metrics["tokens_per_second"] is summary.metrics["tokens_per_answer"] is None
    assert summary.known("seconds_per_answer").value > 0
    assert "seconds per answer" in printed
    assert "tokens per second" not in printed
    succeed("report", str(out), "--output", str(page))
    assert "tokens per second<" not in page.read_text()  # a column


@all_of("extra, tokens", [
    ({"usage": {"completion_tokens": 9}}, 9), ({}, None), ({"usage": {"completion_tokens": 0}}, None),
    ({"usage": {"completion_tokens": None}, "timings": {"predicted_n": 4}}, 4),
    ({"usage": {"completion_tokens": "9"}}, None),
    ({"usage": {"completion_tokens": -1}}, None), ({"usage": {"completion_tokens": True}}, None),
    ({"usage": {"total_tokens": 12}}, None), ({"timings": {"predicted_n": 3}}, 3),
])  # fmt: skip
def test_tokens_are_those_that_a_server_says_if_they_can_be_right(extra, tokens):
    metrics, _, unknown = counts_of(Reply("many words of text", "stop", 0.1, 0.5, extra))
    assert metrics.generated == (tokens or 0)
    assert ("generated" in unknown) == (tokens is None)


def test_an_interrupted_run_goes_on_with_what_is_missing(run, tmp_path):
    out, asked, down = tmp_path / "results.jsonl", set(), True
    last = parse_task("word_problems", 3).problems[2].prompt

    def script(path, body):
        if body["max_tokens"] > 1:
            asked.add((body["prompt"], body.get("acceptance_rule")))
            if down and body["prompt"] == last:  # whichever thread is slow, no run is finished
                return 503, {}
        return honest(path, body)

    with scripted(script) as address:
        given = ("eval", "--server", address, "--concurrency", "2", *SMALL, "--no-chat", "--rule", "lossless",
                 "--rule", "clamped:width=1", "--retries", "1", "--output", str(out))  # fmt: skip
        code, _, err = run(*given)
        assert code == 2
        assert "answers 503" in err.splitlines()[-1]
        assert not out.exists()
        kept = [json.loads(line)["row"] for line in journal_of(out).read_text().splitlines()]
        assert 3 <= len(kept) <= 4  # the other thread may be at a question still, which then is missing too
        down = False
        asked.clear()
        assert run(*given)[0] == 0
    assert len(asked) == 6 - len(kept)
    assert [result.answers["id"] for result in read_results(out)] == [["test-0-0", "test-0-1", "test-0-2"]] * 2


def who_pays(asked):
    """Return how often each rule is the first to ask a prompt, and so waits for a server that keeps it to read it."""
    first = {prompt: rule for prompt, rule in reversed(asked)}
    return Counter(first.values())


def test_rules_take_turns_paying_for_the_reading_of_a_prompt_that_a_server_keeps(succeed, tmp_path):
    asked = []

    def script(path, body):
        if body["max_tokens"] > 1:
            asked.append((body["prompt"], body["acceptance_rule"]))
        return honest(path, body)

    with scripted(script) as address:
        succeed("eval", "--server", address, "--concurrency", "1", "--problems", "6", "--no-chat", "--rule", "lossless",
                "--rule", "clamped:width=1", "--output", str(tmp_path / "results.jsonl"))  # fmt: skip
    assert len(set(asked)) == len(asked) == 12
    assert who_pays(asked) == {"lossless": 3, "clamped:width=1.0": 3}
    in_the_order_of_the_rules = sorted(asked, key=lambda each: (each[0], each[1] != "lossless"))
    assert who_pays(in_the_order_of_the_rules) == {"lossless": 6}


def test_questions_are_asked_problem_after_problem_where_some_are_answered_already():
    one, two, three = (config_of(seed=seed) for seed in range(3))
    assert in_turns({one: [0, 1, 3], two: [1, 3], three: [0, 1, 3]}) == [
        (one, 0), (three, 0), (two, 1), (three, 1), (one, 1), (one, 3), (two, 3), (three, 3),
    ]  # fmt: skip
    assert in_turns({one: [0, 1]}) == [(one, 0), (one, 1)]
    assert in_turns({}) == []


def test_a_refused_question_is_named_and_the_others_are_kept(refused, tmp_path):
    out, long = tmp_path / "results.jsonl", tmp_path / "asked.jsonl"
    prompts = [{"id": str(place), "prompt": "x" * (1 + 50 * (place == 1))} for place in range(4)]
    long.write_text("".join(json.dumps(each) + "\n" for each in prompts))

    def script(path, body):
        return (400, {"error": {"message": "too long"}}) if len(body["prompt"]) > 50 else answering(path, body)

    with scripted(script) as address:
        given = "eval", "--server", address, "--no-chat", "--task", f"jsonl:path={long}", "--output", str(out)
        err = refused(*given)
        assert "the server refused task jsonl:asked, problem '1': too long (status 400); the other answers" in err
        assert len(journal_of(out).read_text().splitlines()) == 3
        long.write_text("".join(json.dumps({"id": str(place), "prompt": "xx" * 30}) + "\n" for place in range(12)))
        err = refused(*given[:-1], str(tmp_path / "all.jsonl"))
        assert "the server refused 10 questions, the first of which is" in err


@all_of("script, models, given, said", [
    (answering, "<html>hello</html>", (), "lists no models at /v1/models: is it an OpenAI-compatible server?"),
    (answering, None, ("--target", "tinny"), "serves no model 'tinny'; did you mean 'tiny'?; it serves tiny"),
    (answering, {"data": [{"id": "a"}, {"id": "b"}]}, (), "serves several models: give one as --target: a, b"),
    (answering, None, ("--rule", "clamped:width=1"), "takes no acceptance rules"),
    (honest, None, ("--rule", "clamped:width=2"), "refuses clamped:width=2.0: not served: clamped:width=2.0"),
    (lambda *_: (404, "<html>"), None, (), "answers no completion: <html> (status 404)"),
    (lambda *_: (404, "<html>"), None, ("--chat",), "answers no chat: <html> (status 404)"),
    (lambda *_: ["{"], None, (), "gave an answer that is not OpenAI's"),
    (answering, None, ("--engine", "vllm"), "leave out --engine"),
    (answering, None, ("--workers", "2"), "leave out --workers"),
    (answering, None, ("--token-ids",), "leave out --token-ids"),
    (answering, None, ("--num-speculative-tokens", "2,4"), "a server has one draft length"),
    (answering, None, ("--draft", "a", "--draft", "b"),
     "a server has one draft, and --draft may name it, but 2 are given: a, b"),
    *((answering, None, ("--timeout", given), f"--timeout must be at most 86400, but is {given}")
      for given in ("inf", "1e12", "nan")),
    (answering, None, ("--tree", "static=2.2"), "a server reads chains of proposals only"),
    (answering, None, ("--no-chat", "--system", "Be brief."), "--system is the system message of a chat"),
    (answering, None, ("--server", "http://no-such-host.invalid"), "http://no-such-host.invalid cannot be reached"),
])  # fmt: skip
def test_mistakes_are_named_and_leave_a_file_as_it_is(run, answered, monkeypatch, script, models, given, said):
    monkeypatch.setattr(client_module, "MAX_PAUSE", 0.0)
    before = answered.read_bytes()
    with scripted(script, models) as address:
        code, _, err = run("eval", "--server", address, "--output", str(answered), *given)
    assert (code, answered.read_bytes()) == (2, before)
    assert said in err
    assert err.splitlines()[-1].startswith("cactus: ")


def test_counts_are_read_from_reports_of_every_kind():
    def counted(**extra):
        return counts_of(Reply("", "stop", 0.1, 0.5, {"usage": {"completion_tokens": 9}} | extra))

    metrics, costs, unknown = counted(timings={"predicted_n": 9, "draft_n": 12, "draft_n_accepted": 5})
    assert (metrics.generated, metrics.steps, metrics.drafted, metrics.accepted, metrics.seconds) == (9, 4, 12, 5, 0.5)
    assert (costs, unknown) == (None, {"relaxed", "recovered", "bonus"})

    summary = {"num_spec_steps": 3, "num_draft_tokens": 12, "num_accepted_draft_tokens": 5}
    metrics, costs, unknown = counted(metrics={"speculative_decoding": summary})
    assert (metrics.steps, metrics.drafted, metrics.accepted, costs) == (4, 12, 5, None)
    assert unknown == {"relaxed", "recovered", "bonus"}

    report = {"nats": 0.5, "verified_positions": 7, "accepted_tokens": 5, "relaxed_tokens": 1.5,
              "fell_back_positions": 1, "protected_positions": 0, "drafted_by_position": [3, 3, 3, 3],
              "accepted_by_position": [3, 1, 1, 0]}  # fmt: skip
    metrics, costs, unknown = counted(metrics={"speculative_decoding": summary | {"acceptance_report": report}})
    assert (metrics.relaxed, metrics.recovered, metrics.bonus, unknown) == (1.5, 3, 1, frozenset())
    assert costs is not None
    assert (costs.metered, costs.nats) == (AuditedCosts(7, 0.5).metered, 0.5)
    assert math.isnan(costs.tv)

    metrics, costs, unknown = counted(metrics={"speculative_decoding": {"acceptance_report": report | {"nats": None}}})
    assert (metrics.drafted, metrics.accepted, costs) == (12, 5, None)
    assert unknown == {"steps", "recovered", "bonus"}


class Hurried(Request):
    minutes: int = 0


def test_a_setting_that_is_not_sent_is_refused() -> None:
    with scripted(answering) as address:
        engine = ServerEngine(ServerClient(address, retries=0))
        with pytest.raises(ValueError, match="a server is not told of minutes, but it is 2: leave it out"):
            engine.check(Hurried(minutes=2))


def test_a_server_that_takes_four_stops_is_sent_four_and_the_text_is_cut_at_the_others() -> None:
    sent = []

    def script(path, body):
        sent.append(body["stop"])
        if len(body["stop"]) > 4:
            return 400, {"error": {"message": "List should have at most 4 items"}}
        return events("one two and three")

    request = Request.from_dict({"stop": ["and", "b", "c", "d", "three"], "seed": 0})
    with scripted(script) as address:
        engine = ServerEngine(ServerClient(address, retries=0))
        answers = [engine.answer("Question:", request) for _ in range(2)]
    assert sent[:3] == [["and", "b", "c", "d", "three"], *[["b", "c", "d", "three"]] * 2]
    assert [(answer.text, answer.finish_reason) for answer in answers] == [("onetwo", "stop")] * 2


def test_a_refused_prompt_says_nothing_of_stops() -> None:
    """Stops were taken to be refused with it, so that all later answers were cut here and came later."""
    sent = []

    def script(path, body):
        sent.append(len(body["stop"]))
        return (400, {"error": {"message": "too long"}}) if body["prompt"] == "long" else events("one two")

    request = Request.from_dict({"stop": ["a", "b", "c", "d", "two"], "seed": 0})
    with scripted(script) as address:
        engine = ServerEngine(ServerClient(address, retries=0))
        with pytest.raises(RefusedError, match="too long"):
            engine.answer("long", request)
        assert sent == [5, 4]
        engine.answer("short", request)
    assert sent == [5, 4, 5]
