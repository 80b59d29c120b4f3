"""Conversations with calls: what templates are told of them, their own words where they refuse, and the next turn."""

import json
from functools import partial

import pytest
from support.gguf_files import completions
from support.tables import all_of

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.llama_cpp.server.call_grammar import CallMarks
from cactus_decoding.engines.llama_cpp.server.completion import Completion, prompts_of, read_completion
from cactus_decoding.zoo.word_problems import EXAMPLES
from scripts.bundled_gguf import write_bundled

# as Qwen's write calls: one as JSON, the other as tags, for which it goes through the arguments by name
_TOOLS = "{% if tools %}tools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
AS_JSON = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}; {% endfor %}assistant: "
)
AS_TAGS = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>"
    "\n{% for key, value in call.function.arguments | items %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}; {% endfor %}assistant: "
)
USER, RESULT = {"role": "user", "content": "Go"}, {"role": "tool", "tool_call_id": "c", "content": "5"}
N = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": N}}]


def called(arguments):
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("histories")

    def load(name, template):
        path = write_bundled("target", folder / name, "float32", _TOOLS + template)
        return load_gguf_pair(parse_gguf(f"{path}:cache=float32,context_size=1024"), "suffix", kept_prompts=2)

    for name in ("json", "tags"):
        (folder / name).mkdir()
    return {"json": load("json", AS_JSON), "tags": load("tags", AS_TAGS)}


def prompt(pair, messages, **more):
    asked = read_completion({"messages": messages} | more, {}, chat=True, pair=pair, marks=CallMarks.of(pair.tokenizer))
    return pair.tokenizer.decode(prompts_of(pair, asked)[0])


WRITTEN = {
    "an object as text": ('{"n": 1}', '{"n": 1}', "<parameter=n>\n1\n</parameter>\n"),
    "an object": ({"n": 1}, '{"n": 1}', "<parameter=n>\n1\n</parameter>\n"),
    "nothing": ("", "{}", ""),
    "spaces": (" \n", "{}", ""),
    "null": (None, "{}", ""),
    "null as text": ("null", "{}", ""),
    "no JSON": ("n is 1", '"n is 1"', "Can only get item pairs from a mapping"),
    "a list": ("[1]", "[1]", "Can only get item pairs from a mapping"),
}


@all_of("case", WRITTEN)
def test_arguments_of_earlier_calls_are_written_or_refused_in_the_template_s_words(pairs, case):
    given, as_json, as_tags = WRITTEN[case]
    messages = [USER, called(given), RESULT]
    assert f'"arguments": {as_json}}}' in prompt(pairs["json"], messages)
    if as_tags.startswith("Can"):
        with pytest.raises(ValueError, match=f"the target's chat template fails: {as_tags}"):
            prompt(pairs["tags"], messages)
    else:
        assert f"<function=add>\n{as_tags}</function>" in prompt(pairs["tags"], messages)


def test_a_call_without_arguments_at_all_has_none(pairs):
    message = called("")
    del message["tool_calls"][0]["function"]["arguments"]
    assert '"arguments": {}}' in prompt(pairs["json"], [USER, message, RESULT])


def test_conversations_without_a_user(pairs):
    messages = [{"role": "system", "content": "Add."}, called('{"n": 1}'), RESULT]
    assert prompt(pairs["json"], messages, tools=TOOLS).endswith("tool: 5; assistant: ")
    with pytest.raises(ValueError, match="the target's chat template fails: No user query found in messages"):
        prompt(pairs["tags"], messages)


def test_developers_are_the_system(pairs):
    messages = [{"role": "developer", "content": "Add."}, USER]
    for pair in pairs.values():
        assert prompt(pair, messages).removeprefix("<bos>").startswith("system: Add.; user: Go")
    twice = [{"role": "system", "content": "Be."}, *messages]
    assert "system: Be.; system: Add." in prompt(pairs["json"], twice)
    with pytest.raises(ValueError, match="chat template fails: System message must be at the beginning"):
        prompt(pairs["tags"], twice)


def answer(pair, messages, **more):
    given = {"messages": messages, "tools": TOOLS, "seed": 3, "max_tokens": 40, "temperature": 0} | more
    asked = read_completion(given, {}, chat=True, pair=pair, marks=CallMarks.of(pair.tokenizer))
    return Completion(pair, asked, prompts_of(pair, asked), "m").whole()


@all_of("name, choice", [(name, choice) for name in ("json", "tags") for choice in ("required", "auto")])
def test_the_turn_after_a_call_depends_on_what_was_sent_alone(pairs, name, choice):
    """What else the model wrote, or how it spelled the call, is read no more: a fresh cache gives the same answer."""
    pair, two = pairs[name], [*TOOLS, {"type": "function", "function": {"name": "sub", "parameters": N}}]
    pair.forget()
    bias = {str(pair.tokenizer("<").input_ids[-1]): 3.0}
    made = answer(pair, [USER], tools=two, tool_choice=choice, temperature=2.0, max_tokens=60, logit_bias=bias)
    message = made["choices"][0]["message"]
    calls = message.get("tool_calls") or called('{"n": 7}')["tool_calls"]
    for arguments in (calls[0]["function"]["arguments"], '{"n": 8}'):  # a client may send another one than was written
        calls[0]["function"]["arguments"] = arguments
        turn = [USER, message | {"tool_calls": calls[:1]}, RESULT, {"role": "user", "content": "And?"}]
        try:
            json.loads(arguments)
        except ValueError:  # a call that was cut
            continue
        kept = answer(pair, turn, logprobs=True)
        assert kept["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        pair.forget()
        fresh = answer(pair, turn, logprobs=True)
        assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert kept["choices"][0]["message"]["content"] == fresh["choices"][0]["message"]["content"]
        both = [[each["logprob"] for each in made["choices"][0]["logprobs"]["content"]] for made in (kept, fresh)]
        assert both[0] == pytest.approx(both[1], abs=1e-3)


@pytest.fixture(scope="module")
def ask(pairs):
    return partial(completions(pairs["json"], num_speculative_tokens=2), messages=[USER], seed=3)


def test_an_answer_has_at_least_so_many_tokens_or_never_ends(ask, pairs):
    ends = {str(token): 100 for token in pairs["json"].stop_token_ids}  # which it would write at once
    assert ask(logit_bias=ends, max_tokens=9).whole()["usage"]["completion_tokens"] == 0
    counted = ask(logit_bias=ends, max_tokens=9, min_tokens=4).whole()["usage"]
    assert counted["completion_tokens"] == 4
    never = ask(logit_bias=ends, max_tokens=9, ignore_eos=True).whole()
    assert (never["choices"][0]["finish_reason"], never["usage"]["completion_tokens"]) == ("length", 9)
    for other in ({"response_format": {"type": "json_object"}}, {"guided_choice": ["a"]}, {"tools": TOOLS}):
        with pytest.raises(ValueError, match="min_tokens and a form or tools exclude each other"):
            ask(min_tokens=3, **other)
    with pytest.raises(ValueError, match="min_tokens and stop exclude each other"):
        ask(min_tokens=3, stop="x")


def test_tokens_that_end_an_answer(ask, pairs):
    whole = ask(max_tokens=12, temperature=0, logprobs=True).whole()["choices"][0]
    written = [each["token"] for each in whole["logprobs"]["content"]]
    [token] = pairs["json"].tokenizer(written[3], add_special_tokens=False).input_ids
    cut = ask(max_tokens=12, temperature=0, stop_token_ids=[token]).whole()["choices"][0]
    assert cut["finish_reason"] == "stop"
    assert cut["message"]["content"] == "".join(written[: written.index(written[3]) + 1])
    for wrong, said in (([10**9], "stop_token_ids must be from 0 to"), ("x", "must be a list of tokens")):
        with pytest.raises((TypeError, ValueError), match=said):
            ask(stop_token_ids=wrong)


def test_a_repetition_penalty_looks_at_the_prompt_too(ask, pairs):
    """With a huge one, no token of the prompt or of the answer comes again."""
    pair = pairs["json"]
    messages = [{"role": "user", "content": EXAMPLES[0].question}]
    asked = {"messages": messages, "temperature": 0, "max_tokens": 20, "logprobs": True, "ignore_eos": True}
    read = read_completion({"messages": messages}, {}, chat=True, pair=pair)
    before = {bytes(pair.tokenizer.piece(token)) for token in prompts_of(pair, read)[0]}

    def written(**more):
        told = ask(**asked | more).whole()["choices"][0]["logprobs"]["content"]
        return [bytes(each["bytes"]) for each in told]

    new = written(repetition_penalty=1e9)
    assert len({*new}) == len(new)
    assert before.isdisjoint(new)
    of_the_answer = written(repeat_penalty=1e9)
    assert not before.isdisjoint(of_the_answer), "llama.cpp's leaves the prompt out"
