"""From the page's JSON to requests: what is refused, by a sentence, and what each rule is asked for."""

from __future__ import annotations

import pytest
from support.playground_server import asked
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import Budget, generate, load_pair, zoo
from cactus_decoding.lab.playground.form import FormLimits, form, read_request
from cactus_decoding.zoo import RELAXED
from cactus_decoding.zoo.word_problems import as_prompt, extract_answer


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prompt": "  "}, "the prompt is empty"),
        ({"prompt": 3}, "the prompt is empty"),
        ({"prompt": "a" * 8001}, "the prompt has 8001 characters; allowed are 8000"),
        ({"rules": []}, "rules must be a list of one or two spellings"),
        ({"rules": ["lossless"] * 3}, "rules must be a list of one or two spellings"),
        ({"rules": ["nonsense"]}, "unknown rule 'nonsense'"),
        ({"rules": ["cactus:delta=-1"]}, "delta must be in [0, inf), but is -1.0"),
        ({"rules": [7]}, "must be a string"),
        ({"seed": -1}, "seed must be between 0 and"),
        ({"seed": "one"}, "seed must be an integer"),
        ({"max_new_tokens": 513}, "max_new_tokens must be between 1 and 512, but is 513"),
        ({"top_p": 2}, "top_p must be in (0, 1]"),
        ({"heat": 2}, "a request has no 'heat'"),
        ({"sampling": {"top_p": 0.5}}, "a request has no 'sampling'"),
        ({"num_speculative_tokens": 65}, "at most 64 on this server, but is 65"),
        ({"tree": "static=4.4.4"}, "at most 64 on this server, but is 84"),
        ({"tree": "static=2.2", "verification": "block"}, "use verification='joint'"),
        ({"num_speculative_tokens": "many"}, "unknown draft length 'many'"),
        ({"num_speculative_tokens": 1.5}, "num_speculative_tokens must be an integer, a draft length or its spelling"),
        ({"verification": "both"}, "verification must be one of token, block"),
        ({"budget": {"nats": -1}}, "nats must be in [0, inf]"),
        ({"budget": {"nats": 1, "max_shift": 0.1}}, "give either nats or max_shift"),
        ({"budget": "much"}, "budget must be a Budget or a number of nats"),
        ({"budget": {"much": 1}}, "'much'"),
        ({"rules": ["top_k:k=5"], "verification": "block"}, "block"),
        ({"rules": ["relaxed_greedy:margin=1"]}, "set the temperature to 0"),
        ({"budget": {"nats": 1, "expected_tokens": 50}}, "the rule must be clamped:width"),
        ({"target": 5}, "target must be a model's name or path"),
        ({"stopp": ["a"]}, "a request has no 'stopp'"),
    ],
)
def test_a_bad_request_is_answered_with_a_sentence(server, change, sentence):
    status, answer = server.post("/api/runs", asked() | change)
    assert status == 422
    assert sentence in answer["message"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rules": ["clamped:width=1"], "verification": "block", "draft": "ngram"}, "needs a draft model"),
        ({"prompt": "a " * 3000}, "the prompt must be shorter than"),
        ({"target": "/no/such/model", "draft": "ngram"}, "there is no folder '/no/such/model'"),
        ({"target": "/no/such/model"}, "there is no folder '/no/such/model'"),
    ],
)
def test_what_only_the_models_can_refuse_ends_the_stream_with_a_sentence(server, change, sentence):
    last = server.events(asked() | change)[-1]
    assert last["event"] == "error"
    assert sentence in last["message"]
    assert "Traceback" not in last["message"]
    assert server.events(asked(max_new_tokens=4))[-1]["event"] == "finished"  # and the seat is free


def test_a_chat_model_is_asked_by_its_template_unless_it_is_not_wanted(server, tmp_path):
    AutoModelForCausalLM.from_pretrained(zoo.path("target")).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    tokenizer.chat_template = "{% for each in messages %}{{ each.role }}: {{ each.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    changes = {"user: Hi": {}, "Hi": {"chat": False}, "system: Be brief.user: Hi": {"system": "Be brief."}}
    for prompt, change in changes.items():
        wanted = asked(prompt="Hi", target=str(tmp_path), max_new_tokens=2) | change
        started = next(event for event in server.events(wanted) if event["event"] == "started")
        assert started["sessions"][0]["prompt"] == prompt
    assert "chat must be true or false" in server.post("/api/runs", asked(chat="yes"))[1]["message"]
    assert "system must be a text" in server.post("/api/runs", asked(system=1))[1]["message"]
    plain = server.post("/api/runs", asked(system="Be brief.", chat=False))[1]["message"]
    assert "a system message is part of a chat" in plain
    last = server.events(asked(system="Be brief."))[-1]  # of the bundled target, which is asked without a template
    assert "has no place for a system message" in last["message"]
    long = server.post("/api/runs", asked(system="x" * 100_000))[1]["message"]
    assert "characters; allowed are" in long


def test_what_a_visitor_compares_first_shows_what_a_rule_does():
    pair = load_pair()
    start = form(FormLimits(), models=False)
    prompt, answers = as_prompt(start["examples"][0]["question"]), []
    for settings in ({**RELAXED}, {"rule": "lossless", "num_speculative_tokens": RELAXED["num_speculative_tokens"]}):
        answers.append(generate(pair, prompt, seed=0, **settings))
    relaxed, lossless = answers
    assert relaxed.metrics.relaxed > 0
    assert relaxed.metrics.steps < lossless.metrics.steps
    assert relaxed.token_ids[:8] != lossless.token_ids[:8]
    assert {extract_answer(each.text) for each in answers} == {start["examples"][0]["answer"]}


def test_models_by_name_need_leave():
    for change, sentence in (
        ({"target": "gpt2", "draft": "ngram"}, "target must be left empty"),
        ({"draft": "suffix:min_token_prob=0"}, "draft must be left empty"),
        ({"draft": "x"}, "draft"),
        ({"importance": "/etc/passwd"}, "does not read files by name"),
        ({"num_speculative_tokens": "auto:profile=/etc/passwd"}, "auto's profile must be left out"),
    ):
        with pytest.raises(ValueError, match=sentence):
            read_request(asked() | change, FormLimits(), models=False)
    assert read_request(asked(draft="ngram"), FormLimits(), models=False).draft == "ngram"
    assert read_request(asked(draft="suffix"), FormLimits(), models=False).draft == "suffix"
    with pytest.raises(ValueError, match="earlier shows users each other's answers"):
        read_request(asked(draft="suffix:earlier=9"), FormLimits(), models=True)


def test_there_is_one_request_a_rule_alike_but_for_the_rule():
    body = asked("cactus:delta=0.5", "clamped:width=1.0", top_k=5, num_speculative_tokens="auto", verification="token")
    first, second = read_request(body, FormLimits(), models=False).requests
    assert (str(first.rule), str(second.rule)) == tuple(body["rules"])
    assert first.num_speculative_tokens is not second.num_speculative_tokens  # each learns from its own answer
    values = [request.as_dict() | {"rule": ""} for request in (first, second)]
    assert values[0] == values[1]
    assert (values[0]["top_k"], values[0]["seed"]) == (5, 0)


def test_the_lossless_rule_has_no_budget_to_spend():
    body = asked("clamped:width=1.0", "lossless", budget={"max_shift": 0.1, "expected_tokens": 40})
    relaxed, lossless = read_request(body, FormLimits(), models=False).requests
    assert relaxed.budget == Budget(max_shift=0.1, expected_tokens=40)
    assert lossless.budget is None


def test_a_seed_is_drawn_where_none_is_given():
    requests = [
        read_request(asked("lossless", "typical", seed=None), FormLimits(), models=False).requests for _ in range(2)
    ]
    assert requests[0][0].seed == requests[0][1].seed != requests[1][0].seed
