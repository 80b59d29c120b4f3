"""Requests to the server: what a completion is then asked for, and a sentence for every mistake."""

import sys

import pytest
from support.tables import all_of

from cactus_decoding import Request, SamplingParams
from cactus_decoding.core.sampling import params
from cactus_decoding.engines.llama_cpp.server.completion import read_completion

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}


def read(usual=(), *, chat=False, **body):
    return read_completion(({"messages": [USER]} if chat else {"prompt": "Hi"}) | body, dict(usual), chat=chat)


def test_what_is_not_asked_for_is_what_vllm_takes():
    asked = read()
    # of everything else the server's own settings decide
    assert asked.request == Request(sampling=SamplingParams(1.0), max_new_tokens=16)
    assert (asked.body.stream, asked.body.n, asked.body.num_logprobs) == (False, 1, None)
    assert read({"max_new_tokens": 9}, chat=True).request == Request()


@all_of("chat", [False, True])
def test_each_value_is_checked_once_and_the_request_of_the_first_choice_travels(chat):
    checks = []

    def profile(frame, event, _):
        if event == "call" and frame.f_code is params._temperature.__code__:
            checks.append(frame.f_locals["given"])

    sys.setprofile(profile)
    try:
        asked = read(chat=chat, temperature=0.7, n=3, seed=5)
        requests = [asked.request_of(index) for index in range(6)]
    finally:
        sys.setprofile(None)
    assert checks == [0.7]
    assert requests[0] is asked.request
    assert requests == [asked.request.replace(seed=seed) for seed in (5, 6, 7)] * 2  # of two prompts
    assert {read(chat=chat, n=3).request_of(index).seed for index in range(3)} == {None}


def test_names_of_openai_and_ours_become_those_of_a_completion():
    asked = read(
        chat=True, max_completion_tokens=5, acceptance_rule="cactus:delta=1", budget=0.5, protect="json|digits"
    )
    own = {"rule": "cactus:delta=1", "budget": 0.5, "protect": "digits|json", "max_new_tokens": 5}
    assert asked.request == Request.from_dict(own)
    assert read(prompt=[[1, 2], [3]]).body.prompt == [[1, 2], [3]]
    assert [read(prompt=each).body.prompt for each in ("a", ["a", "b"], [1, 2])] == [["a"], ["a", "b"], [[1, 2]]]
    assert read(stop="x").request.stop == ("x",)
    assert (read(logprobs=0).body.num_logprobs, read(n=3).body.n) == (0, 3)
    assert read(acceptance_report=True).body.acceptance_report
    told = [{"logprobs": True}, {"logprobs": True, "top_logprobs": 4}, {"logprobs": False}, {"top_logprobs": 0}]
    assert [read(chat=True, **each).body.num_logprobs for each in told] == [0, 4, None, None]
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    (message,) = read(chat=True, messages=[{"role": "developer", "content": parts}]).body.messages
    assert message.as_dict() == {"role": "system", "content": "ab"}


def meant(asked):
    """Return what a request asks for: fields that change nothing are no part of it."""
    return asked.body.model_dump(exclude={"response_format"}), asked.request, asked.tools, asked.grammar


def test_what_clients_send_besides_is_taken_and_changes_nothing():
    besides = {
        "user": "me", "service_tier": "auto", "store": False, "metadata": {"a": "b"}, "safety_identifier": "x",
        "prompt_cache_key": "y", "parallel_tool_calls": True, "model": "gpt-4", "logit_bias": None, "seed": 1,
        "stream_options": {"include_usage": False, "include_obfuscation": False},
    }  # fmt: skip
    assert meant(read(**besides, best_of=1)) == meant(read(seed=1)) != meant(read(seed=2))
    chat = {"verbosity": "low", "modalities": ["text"], "response_format": {"type": "text"}}
    chat |= {"prediction": {"type": "content", "content": "Hello"}}
    assert meant(read(chat=True, **besides, **chat)) == meant(read(chat=True, seed=1))


def test_a_form_beside_a_forced_call_is_that_of_text_which_there_is_none_of():
    """As instructor sends it."""
    named = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "add"}}}
    formed = read(chat=True, **named, response_format=schema({"type": "array"}))
    assert formed.grammar == read(chat=True, **named).grammar
    with pytest.raises(ValueError, match="guided_regex and tools exclude each other"):
        read(chat=True, **named, guided_regex="a")


@all_of(
    "choice, said",
    [
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "must have a mode, auto or required",
        ),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "x"}]}}, "the tools are: add"),
        ({"type": "allowed_tools", "mode": "some", "tools": [TOOL]}, "must have a mode, auto or required"),
    ],
)
def test_wrong_choices_of_allowed_tools_are_refused(choice, said):
    with pytest.raises(ValueError, match=said):
        read(chat=True, tools=[TOOL], tool_choice=choice)


def test_a_server_s_settings_can_be_taken_back():
    usual = {"rule": "clamped:width=1", "protect": r"\d+", "protect_threshold": 0.1, "relax_within": ["<a>", "</a>"]}
    # the server's own pattern may be named
    assert read(usual, protect=r"\d+").request.policy == Request.from_dict(usual).policy
    asked = read(usual, protect="none", relax_within="none").request
    assert (asked.rule, asked.policy) == (Request.from_dict(usual).rule, Request().policy)


@all_of(
    "body, said",
    [
        ({"acceptance_rules": "lossless"}, "did you mean 'acceptance_rule'"),
        ({"frob": 1}, "known are model, max_tokens"),
        ({"acceptance_rule": ["lossless"]}, "acceptance_rule must be a text"),
        ({"protect": "a+"}, "protect must be one of digits"),
        ({"relax_within": ["<" * 65, ">"]}, "at most 64 characters"),
        ({"relax_within": [[1] * 65, [2]]}, "at most 64 characters or tokens"),
        ({"logprobs": 21}, "logprobs must be between 0 and 20"),
        ({"logprobs": 1, "echo": True}, "echo with logprobs is not served"),
        ({"best_of": 2}, "best_of of 2 is not served"),
        ({"suffix": "x"}, "suffix is not served"),
        ({"mirostat_mode": 1}, "mirostat_mode is not served"),
        ({"n": 17}, "n must be between 1 and 16"),
        ({"num_speculative_tokens": 65}, "num_speculative_tokens must be between 0 and 64, but is 65"),
        ({"num_speculative_tokens": "auto"}, "num_speculative_tokens must be an integer"),
        ({"num_speculative_tokens": 2, "speculative": False}, "speculative is false"),
        ({"temperature": -1}, "temperature must be in"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"stop": [""]}, "stop must be"),
        ({"stream_options": {"x": 1}}, "stream_options may hold include_usage"),
        ({"logit_bias": [1]}, "logit_bias must be an object"),
        ({"prompt": ["a", ""]}, "prompt must be a text, its tokens"),
        ({"prompt": ["a"] * 33}, "at most 32 prompts, but is 33"),
        ({"prompt": None}, "a request must have prompt"),
        ({"messages": [USER]}, "a request has no 'messages'"),
        ({"chat": True, "messages": []}, "messages must be a list"),
        ({"chat": True, "messages": [{"content": "x"}]}, "a message must be an object with a role"),
        (
            {"chat": True, "messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "neither images nor sounds",
        ),
        ({"chat": True, "messages": [{"role": "user", "content": 3}]}, "content must be text"),
        ({"chat": True, "prompt": "x"}, "a request has no 'prompt'"),
        ({"chat": True, "tools": {}}, "tools must be a list"),
        ({"chat": True, "tools": [{"type": "function"}]}, "a function with a name"),
        ({"chat": True, "tool_choice": "required"}, "the request has no tools"),
        ({"chat": True, "tool_choice": "some"}, "tool_choice must be one of none, auto, required"),
        (
            {"chat": True, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "the tools are: add",
        ),
        ({"chat": True, "response_format": {"type": "xml"}}, "response_format must be of type text"),
        ({"chat": True, "response_format": {"type": "json_schema"}}, "must have a json_schema with a schema"),
        ({"chat": True, "response_format": {"type": "json_object"}, "grammar": "x"}, "exclude each other"),
        ({"chat": True, "response_format": schema({"$ref": "https://example.org"})}, "cannot read the JSON schema"),
        ({"chat": True, "top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"chat": True, "best_of": 1}, "best_of is not served"),
        ({"chat": True, "modalities": ["audio"]}, "answers are text"),
        ({"guided_choice": []}, "guided_choice must be 1 to 256 texts that are not empty, but is []"),
        ({"guided_choice": "yes"}, "guided_choice must be a list, but is 'yes'"),
        ({"guided_choice": [1]}, "guided_choice must be a list of texts, but is [1]"),
        ({"guided_choice": ["a", "a"]}, "guided_choice must be different texts, but has 'a' twice"),
        ({"guided_choice": ["a" * 99999]}, "guided_choice may have 16,384 characters together, but has 99,999"),
        (
            {"structured_outputs": {"choice": ["a"] * 300}},
            "choice of structured_outputs must be 1 to 256 texts that are not empty",
        ),
        (
            {"guided_choice": ["a"], "guided_regex": "a"},
            "guided_regex and guided_choice exclude each other: each says what the answer looks like",
        ),
    ],
)
def test_mistakes_are_sentences(body, said):
    with pytest.raises((TypeError, ValueError)) as error:
        read(**body)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
