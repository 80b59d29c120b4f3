"""What requests are answered: choices, log-probabilities of every kind of token, tools and JSON, whole and in parts."""

import json

import pytest
import torch
from support.gguf_files import completions
from support.tables import all_of

from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.core.types import Fate
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.llama_cpp.sampling import LlamaSampling, LogitBias, Penalties
from cactus_decoding.engines.llama_cpp.server.completion import _log_once, read_completion
from cactus_decoding.zoo.word_problems import EXAMPLES

QUESTION = EXAMPLES[0].prompt
CHAT = [{"role": "user", "content": EXAMPLES[0].question}]
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}}
SUB = {"name": "sub", "parameters": ADD["parameters"]}
TOOLS = [{"type": "function", "function": each} for each in (ADD, SUB)]


@pytest.fixture(scope="module")
def pair(gguf):
    file = parse_gguf(f"{gguf('target')}:cache=float32,context_size=512")
    return load_gguf_pair(file, f"{gguf('worded')}:cache=float32", kept_prompts=1)


@pytest.fixture(scope="module")
def ask(pair):
    return completions(pair, num_speculative_tokens=4)


def joined(chunks, place, name):
    return "".join(chunk["choices"][0][place].get(name) or "" for chunk in chunks if chunk["choices"])


@pytest.mark.parametrize("given", [{}, {"stop": ["stamps"]}, {"max_tokens": 7}], ids=str)
def test_chunks_join_to_the_whole(ask, given):
    same = {"seed": 3, "logprobs": 2, "acceptance_rule": "clamped:width=1"} | given
    same = {"max_tokens": 80} | same
    whole = ask(prompt=QUESTION, **same).whole()
    chunks = [*ask(prompt=QUESTION, stream_options={"include_usage": True}, **same).chunks()]
    (choice,), parts = whole["choices"], [chunk["choices"][0] for chunk in chunks[:-1]]
    assert "".join(part["text"] for part in parts) == choice["text"]
    assert [part["finish_reason"] for part in parts] == [None] * (len(parts) - 1) + [choice["finish_reason"]]
    for name, values in choice["logprobs"].items():
        told = [each for part in parts for each in part["logprobs"][name]]
        if name == "top_logprobs":
            told, values = ([value for each in some for value in each.values()] for some in (told, values))
        assert told == (values if name == "tokens" else pytest.approx(values, abs=1e-3)), name
    assert "".join(choice["logprobs"]["tokens"]).startswith(choice["text"])
    cached = chunks[-1]["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert cached == whole["usage"]["prompt_tokens"] - 1 >= whole["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], whole["usage"])
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_offsets_of_tokens_count_characters_of_the_text(ask):
    """Bytes of one character begin where it begins."""
    same = {"prompt": QUESTION, "guided_regex": "a😀é (yes|no) 😀[0-9]", "seed": 1, "logprobs": 1, "max_tokens": 40}
    (choice,) = ask(**same).whole()["choices"]
    told, written = choice["logprobs"], b""
    assert any(token.startswith("bytes:") for token in told["tokens"])
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert offset == len(written.decode(errors="ignore"))
        raw = token.removeprefix("bytes:")
        written += raw.encode() if raw == token else bytes.fromhex(raw.replace("\\x", ""))
    assert written.decode() == choice["text"]
    parts = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in ask(**same).chunks()]
    assert [offset for part in parts for offset in part] == told["text_offset"]


@all_of(
    "sampled",
    [
        {"temperature": 1.5},
        {"temperature": 0.7, "top_p": 0.9, "logit_bias": {"20": 1.5}},
        {"temperature": 0.0, "frequency_penalty": 0.5},
    ],
)
def test_log_probabilities_are_the_targets_whoever_wrote_the_token(pair, ask, sampled):
    """Rows are read again from the whole text, without a draft."""
    fates, tokens, rows = [], [], []

    def watch(request, outcome):
        fates.extend(outcome.fates)
        tokens.extend(outcome.token_ids)

    same = {"seed": 6, "logprobs": 3, "max_tokens": 60} | sampled
    (choice,) = ask(watch, prompt=QUESTION, **same).whole()["choices"]
    assert {Fate.ACCEPTED, Fate.RECOVERED, Fate.BONUS} == {*fates}
    told, prompt = choice["logprobs"], pair.tokenizer(QUESTION).input_ids
    asked = read_completion({"prompt": QUESTION} | same, {}, chat=False, pair=pair)
    processors = [Penalties(len(prompt), 64, *asked.body.penalties)]
    processors += [LogitBias(asked.body.logit_bias, pair.target.vocabulary_size)] if asked.body.logit_bias else []
    to_probs = LlamaSampling(asked.request.sampling, processors)
    twin = pair.target.twin()
    logits = twin.append(prompt + tokens, len(tokens) + 1)
    for i, token in enumerate(tokens[: len(told["tokens"])]):
        text = prompt + tokens[:i]
        row = to_probs.untempered(logits[i : i + 1], text) if not same["temperature"] else to_probs(
            logits[i : i + 1], text
        )  # fmt: skip
        rows.append(row[0].double().log().clamp(min=-9999.0))
        assert told["token_logprobs"][i] == pytest.approx(float(rows[-1][token]), abs=2e-4)
        assert [*told["top_logprobs"][i].values()] == pytest.approx(rows[-1].topk(3).values.tolist(), abs=2e-4)
    assert torch.stack(rows).exp().sum(-1).allclose(torch.ones(len(rows)).double(), atol=1e-5)


def test_the_first_token_does_not_wait_for_the_draft_to_read_the_prompt(pair, ask):
    pair.forget()
    steps, draft = [], pair.drafter.model_cache

    def watch(request, outcome):
        steps.append((outcome.num_drafted, draft.length))

    ask(watch, prompt=QUESTION, max_tokens=20).whole()
    assert steps[0] == (0, 0)
    assert all(drafted > 0 for drafted, _ in steps[1:-1])
    assert draft.length > len(pair.tokenizer(QUESTION).input_ids)


def test_several_choices_have_the_next_seeds_and_each_its_place(ask):
    same = {"messages": CHAT, "temperature": 1.5, "max_tokens": 30}
    alone = [ask(seed=seed, **same).whole() for seed in (7, 8, 9)]
    whole, chunks = ask(seed=7, n=3, **same).whole(), [*ask(seed=7, n=3, **same).chunks()]
    texts = [each["choices"][0]["message"]["content"] for each in alone]
    assert [choice["message"]["content"] for choice in whole["choices"]] == texts
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    for index, text in enumerate(texts):
        parts = [chunk for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert joined(parts, "delta", "content") == text
    assert whole["usage"]["completion_tokens"] == sum(each["usage"]["completion_tokens"] for each in alone)


def test_the_request_says_what_is_sampled(ask):
    seen = []
    cut = {"temperature": 0.6, "top_k": 9, "top_p": 0.8, "min_p": 0.1}
    same = {"prompt": QUESTION, "max_tokens": 3, "stop": ["@"], "seed": 4}
    ask(lambda request, outcome: seen.append(request), n=2, **same, **cut).whole()
    first, last = seen[0], seen[-1]
    assert (first.sampling, first.max_new_tokens, first.stop) == (SamplingParams(0.6, 9, 0.8, 0.1), 3, ("@",))
    assert (first.seed, last.seed) == (4, 5)
    ask(lambda request, outcome: seen.append(request), messages=CHAT, stop=[" "], top_k=-1).whole()
    assert seen[-1].sampling == SamplingParams()
    assert seen[-1].max_new_tokens > 400, "as many as there is room for"


def test_a_report_says_what_the_counters_count(ask):
    steps = []
    same = {"prompt": QUESTION, "max_tokens": 40, "seed": 2, "acceptance_rule": "clamped:width=2", "protect": "digits"}
    same |= {"acceptance_report": True, "budget": 0.5}
    whole = ask(lambda request, outcome: steps.append(outcome), **same).whole()
    report = whole["metrics"]["speculative_decoding"]["acceptance_report"]
    visits = [visit for step in steps for visit in step.visits]
    judged = [visit for visit in visits if not visit.protected and not visit.fell_back]
    assert report["nats"] == pytest.approx(sum(visit.nats or 0 for visit in visits))
    assert 0 < report["nats"] <= 0.5
    assert report["verified_positions"] == len(judged)
    assert report["protected_positions"] == sum(visit.protected for visit in visits) > 0
    assert report["steps"] == len(steps)
    assert sum(report["drafted_by_position"]) == sum(step.num_drafted for step in steps)
    assert sum(report["accepted_by_position"]) == sum(step.num_accepted for step in steps)
    assert [*ask(**same).chunks()][-1]["metrics"] == whole["metrics"]
    assert "metrics" not in ask(prompt=QUESTION, max_tokens=2).whole()
    for rule, nats in (("lossless", 0.0), ("clamped:width=2", None)):  # without a budget nobody measures
        asked = {"prompt": QUESTION, "max_tokens": 40, "seed": 2, "acceptance_rule": rule, "acceptance_report": True}
        unlimited = ask(**asked).whole()["metrics"]["speculative_decoding"]["acceptance_report"]
        assert unlimited["nats"] == nats


@all_of("rule", ["lossless", "cactus:delta=1", "typical"])
def test_answers_by_a_schema_and_forced_calls(ask, rule):
    schema = {"type": "object", "properties": {"pens": {"enum": [3, 4]}}, "required": ["pens"]}
    form = {"type": "json_schema", "json_schema": {"name": "pens", "strict": True, "schema": schema}}
    same = {"messages": CHAT, "max_tokens": 40, "seed": 4, "acceptance_rule": rule}
    message = ask(response_format=form, **same).whole()["choices"][0]["message"]
    assert json.loads(message["content"])["pens"] in (3, 4)
    for choice, known in (({"type": "function", "function": {"name": "add"}}, ["add"]), ("required", ["add", "sub"])):
        asked = same | {"tools": TOOLS, "tool_choice": choice}
        (whole,) = ask(**asked).whole()["choices"]
        assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
        (call,) = whole["message"]["tool_calls"]
        assert call["function"]["name"] in known
        assert json.loads(call["function"]["arguments"])["n"] in (1, 2)
        chunks = [*ask(**asked).chunks()]
        deltas = [each["choices"][0]["delta"] for each in chunks]
        parts = [part for delta in deltas for part in delta.get("tool_calls", [])]
        assert [part.get("id") is None for part in parts] == [False] + [True] * (len(parts) - 1)
        assert parts[0]["function"]["name"] == call["function"]["name"]
        assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
        assert joined(chunks, "delta", "content") == ""
    legacy = ask(functions=[ADD], function_call={"name": "add"}, **same).whole()["choices"][0]["message"]
    assert legacy["function_call"] == legacy["tool_calls"][0]["function"]


def test_a_call_that_a_stop_string_cuts_is_left_out(ask):
    """A stream has told its beginning by then, and ends with another reason than a call does."""
    same = {"messages": CHAT, "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}}
    (choice,) = ask(**same, seed=1, stop='": ').whole()["choices"]
    assert (choice["finish_reason"], "tool_calls" in choice["message"]) == ("stop", False)
    parts = [chunk["choices"][0] for chunk in ask(**same, seed=1, stop='": ').chunks()]
    assert parts[-1]["finish_reason"] == "stop"
    (choice,) = ask(**same, seed=1, max_tokens=3).whole()["choices"]
    assert (choice["finish_reason"], len(choice["message"]["tool_calls"])) == ("length", 1)


def test_what_cannot_be_answered_is_said_before_a_token_is_read(ask):
    for body, said in (
        ({"prompt": "word " * 2000}, "shorter than the target's 512 positions"),
        ({"prompt": [10**6]}, "prompt must be tokens from 0"),
        ({"prompt": QUESTION, "grammar": "frob"}, "cannot read the grammar"),
        ({"prompt": QUESTION, "logit_bias": {"x": 1}}, "logit_bias must name tokens"),
    ):
        with pytest.raises(ValueError, match=said):
            ask(**body)


def test_one_of_several_answers_comes_with_the_probability_of_each(ask, pair):
    same = {"prompt": QUESTION, "guided_choice": ["yes", "no", "43 stamps"], "seed": 1, "logprobs": 1}
    whole, chunks = ask(**same).whole(), [*ask(**same).chunks()]
    (choice,), told = whole["choices"], whole["choices"][0]["choice_probabilities"]
    assert [each["choice"] for each in told] == same["guided_choice"]
    assert sum(each["probability"] for each in told) == pytest.approx(1)
    assert choice["text"] == "".join(chunk["choices"][0]["text"] for chunk in chunks) in same["guided_choice"]
    assert (choice["finish_reason"], whole["usage"]["completion_tokens"]) == ("stop", len(choice["logprobs"]["tokens"]))
    for one, other in zip(told, chunks[-1]["choices"][0]["choice_probabilities"], strict=True):
        assert one["choice"] == other["choice"]
        assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
    assert not any("choice_probabilities" in chunk["choices"][0] for chunk in chunks[:-1])
    # the probability of a whole answer, read by itself
    prompt = pair.tokenizer(QUESTION).input_ids
    for each in told:
        answer = pair.tokenizer(each["choice"], add_special_tokens=False).input_ids
        pair.forget()
        rows = pair.target.append([*prompt, *answer], len(answer) + 1).double().log_softmax(-1)
        expected = sum(rows[i, token].item() for i, token in enumerate([*answer, *pair.stop_token_ids]))
        assert each["logprob"] == pytest.approx(expected, abs=1e-4)
    pair.forget()


@all_of(
    "form, texts",
    [
        ({"structured_outputs": {"choice": ["left", "right"]}}, {"left", "right"}),
        ({"structured_outputs": {"json": {"enum": ["left", 2]}}}, {'"left"', "2"}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "x"}}}}, {'"x"'}),
    ],
)
def test_other_names_of_choices(ask, form, texts):
    (choice,) = ask(messages=CHAT, seed=2, **form).whole()["choices"]
    assert choice["message"]["content"] in texts
    assert {each["choice"] for each in choice["choice_probabilities"]} == texts
    assert len(ask(messages=CHAT, n=3, **form).whole()["choices"]) == 3


def test_a_rule_that_needs_cuts_and_has_none_is_warned_of_in_reports_and_once_in_the_log(ask, caplog):
    def report(**body):
        found = ask(prompt=QUESTION, seed=1, max_tokens=4, acceptance_report=True, **body).whole()
        return found["metrics"]["speculative_decoding"]["acceptance_report"]

    _log_once.cache_clear()
    absurd = {"acceptance_rule": "cactus:delta=1"}
    for _ in range(2):
        assert "also lifts tokens that the target finds absurd" in report(**absurd)["warning"]
    assert len([each for each in caplog.records if "finds absurd" in each.message]) == 1
    for others in (absurd | {"top_p": 0.9}, absurd | {"speculative": False}, {"acceptance_rule": "clamped:width=1"}):
        assert "warning" not in report(**others)
    assert report(**absurd)["nats"] is None
    assert report(**absurd, budget=1e9)["nats"] >= 0
