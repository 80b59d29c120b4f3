"""What clients ask of a real server beside answers: tokens, models, other sites, codes of errors, drafts."""

import http.client
import json
from contextlib import closing

import pytest
from support.llama_server import events_of, serving
from support.patience import PATIENCE

from cactus_decoding.zoo.word_problems import EXAMPLES

QUESTION = EXAMPLES[0].prompt
USER = {"role": "user", "content": EXAMPLES[0].question}
SITE = "https://chat.example.org"
CHATS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(gguf):
    """Its draft's window is shorter than most prompts, and its number of proposals is fixed."""
    target, draft = f"{gguf('target')}:context_size=512", f"{gguf('worded')}:context_size=64"
    given = (target, "--draft", draft, "--threads", "1", "--num-speculative-tokens", "4", "--alias", "ours")
    with serving(*given, "--port", "0", "--api-key", "k", "--allow-origin", SITE) as running:
        yield running


def ask(server, path, **body):
    return server.ask("POST", path, body, "k")


def chat(server, *messages, **body):
    status, answer = ask(server, CHATS, messages=[USER, *messages], temperature=0, seed=1, **body)
    assert status == 200, answer
    [choice] = answer["choices"]
    return choice["message"]["content"], answer


@pytest.mark.slow
def test_texts_and_conversations_become_tokens_and_back(server):
    status, answer = ask(server, "/tokenize", prompt=QUESTION, return_token_strs=True)
    assert (status, answer["count"], answer["max_model_len"]) == (200, len(answer["tokens"]), 512)
    assert len(answer["token_strs"]) == answer["count"]
    assert QUESTION in ask(server, "/detokenize", tokens=answer["tokens"])[1]["prompt"]
    usage = ask(server, "/v1/completions", prompt=QUESTION, max_tokens=1)[1]["usage"]
    assert usage["prompt_tokens"] == answer["count"]
    told = ask(server, "/tokenize", messages=[USER])[1]
    assert told["count"] == chat(server, max_tokens=1)[1]["usage"]["prompt_tokens"]
    assert ask(server, "/tokenize", prompt="", add_special_tokens=False)[1]["tokens"] == []
    for path, body, said in (
        ("/tokenize", {}, "either prompt or messages"),
        ("/tokenize", {"prompt": 3}, "prompt must be a text"),
        ("/tokenize", {"messages": [{"role": "user", "content": 3}]}, "content must be text"),
        ("/detokenize", {"tokens": [10**9]}, "tokens must be from 0 to"),
        ("/detokenize", {"tokens": [-1]}, "integers of at least 0"),
        ("/detokenize", {}, "a request must have tokens"),
    ):
        status, answer = ask(server, path, **body)
        assert (status, said in answer["error"]["message"]) == (400, True), answer


@pytest.mark.slow
def test_errors_have_openai_s_codes(server):
    long = [{"role": "user", "content": "word " * 2_000}]
    schema = {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"type": "strng"}}}}}
    unread = {"type": "grammar", "syntax": "regex", "definition": "(a"}
    for method, path, body, status, code, param in (
        ("GET", "/v1/models/gpt-4o", None, 404, "model_not_found", None),
        ("POST", "/v1/completions", {"prompt": "word " * 2_000}, 400, "context_length_exceeded", None),
        ("POST", "/v1/completions", {"prompt": "word " * 2_000, "stream": True}, 400, "context_length_exceeded", None),
        ("POST", CHATS, {"messages": long}, 400, "context_length_exceeded", None),
        ("POST", CHATS, {"messages": [USER], "frob": 1}, 400, "unknown_parameter", "frob"),
        ("POST", CHATS, {"messages": [USER], "seed": "x"}, 400, "invalid_type", "seed"),
        ("POST", CHATS, {"messages": [USER], "top_p": 7}, 400, "invalid_value", "top_p"),
        ("POST", CHATS, {"messages": [USER], "response_format": schema}, 400, "invalid_value", "response_format"),
        ("POST", CHATS, {"messages": [USER], "response_format": unread}, 400, "invalid_value", "response_format"),
        ("POST", "/v1/embeddings", {}, 404, None, None),
    ):
        found, answer = server.ask(method, path, body, "k")
        error = answer["error"]
        assert (found, error["code"], error["param"]) == (status, code, param), answer
    found, answer = server.ask("GET", "/v1/models")
    assert (found, answer["error"]["code"]) == (401, "invalid_api_key")
    assert server.ask("POST", "/tokenize", {"prompt": "a"})[0] == 401
    assert server.ask("GET", "/v1/models/ours", None, "k")[1]["id"] == "ours"


@pytest.mark.slow
def test_pages_of_an_allowed_site_may_ask_and_others_may_not(server):
    def browser(method, path, origin, body=None, **headers):
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
            connection.request(method, path, body, {"Origin": origin} | headers)
            response = connection.getresponse()
            response.read()
        return response.status, response.getheader("Access-Control-Allow-Origin")

    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    body = json.dumps({"prompt": "Hi", "max_tokens": 1})
    key = {"Authorization": "Bearer k", "Content-Type": "application/json"}
    assert browser("OPTIONS", "/v1/completions", SITE, **asked) == (200, SITE)
    assert browser("POST", "/v1/completions", SITE, body, **key) == (200, SITE)
    assert browser("POST", "/v1/completions", SITE, body, **{"Content-Type": "application/json"}) == (401, SITE)
    for other in ("https://evil.example.org", "null", "http://["):
        assert browser("OPTIONS", "/v1/completions", other, **asked) == (403, None)
        assert browser("POST", "/v1/completions", other, body, **key) == (403, None)


@pytest.mark.slow
def test_a_text_that_outgrows_the_draft_s_window_goes_on_without_drafts(server):
    def drafted(prompt, **body):
        asked = {"max_tokens": 24, "temperature": 0, "seed": 1, "acceptance_report": True}
        status, answer = ask(server, "/v1/completions", prompt=prompt, **asked, **body)
        assert status == 200, answer
        report = answer["metrics"]["speculative_decoding"]["acceptance_report"]
        return sum(report["drafted_by_position"]), answer["choices"][0]["text"]

    long = QUESTION * 3
    assert ask(server, "/tokenize", prompt=long)[1]["count"] > 64
    number, text = drafted(long)
    assert (number, text) == (0, drafted(long, num_speculative_tokens=0)[1])
    assert drafted("Finn has")[0] > 0


@pytest.mark.slow
def test_a_request_says_how_many_tokens_are_proposed(server):
    def longest(**body):
        answer = chat(server, max_tokens=20, acceptance_report=True, **body)[1]
        report = answer["metrics"]["speculative_decoding"]["acceptance_report"]
        return len([each for each in report["drafted_by_position"] if each])

    assert [longest(num_speculative_tokens=number) for number in (0, 1, 2, 9)] == [0, 1, 2, 9]
    assert (longest(speculative=False), longest(speculative=True), longest()) == (0, 4, 4)


@pytest.mark.slow
def test_an_answer_goes_on_with_a_half_sentence(server):
    whole, _ = chat(server, max_tokens=30)
    half = {"role": "assistant", "content": whole[: len(whole) // 2]}
    for switch in ({"continue_final_message": True}, {"chat_template_kwargs": {"continue_final_message": True}}):
        rest, _ = chat(server, half, max_tokens=30, **switch)
        assert (half["content"] + rest)[: len(whole)] == whole
    both = {"continue_final_message": True, "add_generation_prompt": True}
    assert ask(server, CHATS, messages=[USER, half], **both)[0] == 400
    tokens = [
        ask(server, "/tokenize", messages=[USER, half], **given)[1]["count"]
        for given in ({}, {"continue_final_message": True}, {"add_generation_prompt": False})
    ]
    assert tokens[1] < tokens[0] == tokens[2]  # the bundled template writes nothing before an answer


@pytest.mark.slow
def test_what_a_template_does_not_show_is_refused(server):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    image = {"type": "image_url", "image_url": {"url": "data:,"}, "text": "a picture"}
    for body, said in (
        ({"messages": [USER], "tools": tools}, "the model's chat template has no place for tools"),
        ({"messages": [{"role": "user", "content": [image]}]}, "one part is 'image_url'"),
        ({"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}}, "must not have chat_template"),
        ({"messages": [USER], "chat_template_kwargs": {"messages": []}}, "must not have messages"),
    ):
        status, answer = ask(server, CHATS, max_tokens=4, **body)
        assert (status, said in answer["error"]["message"]) == (400, True), answer
    assert ask(server, CHATS, messages=[USER], tools=tools, tool_choice="required", max_tokens=4)[0] == 200
    assert ask(server, CHATS, messages=[USER], tools=tools, tool_choice="none", max_tokens=4)[0] == 200


@pytest.mark.slow
def test_responses_are_what_conversations_are_answered(server):
    said, answer = chat(server, max_tokens=20)
    asked = {"input": USER["content"], "temperature": 0, "seed": 1, "max_output_tokens": 20}
    status, whole = ask(server, "/v1/responses", **asked)
    assert status == 200, whole
    [message] = whole["output"]
    assert (message["content"][0]["text"], whole["status"]) == (said, "incomplete")
    assert whole["usage"]["output_tokens"] == answer["usage"]["completion_tokens"]
    with closing(server.connect("POST", "/v1/responses", asked | {"stream": True}, "k")) as connection:
        events = [*events_of(connection.getresponse())]
    assert "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta") == said
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["usage"] == whole["usage"]
    schema = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    text = ask(server, "/v1/responses", **asked, text=form)[1]["output"][0]["content"][0]["text"]
    assert json.loads(text) == {"n": 7}
    status, answer = ask(server, "/v1/responses", input="word " * 2_000, stream=True)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    status, answer = ask(server, "/v1/responses", input="Hi", previous_response_id="resp_1")
    assert (status, "responses are not kept" in answer["error"]["message"]) == (400, True)


@pytest.mark.slow
def test_a_response_tells_as_much_as_a_stream_as_it_does_as_a_whole(server):
    add = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"n": {"enum": [7]}}}}
    told = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "acceptance_report": True}
    asked = {"input": USER["content"], "temperature": 0, "seed": 1, "max_output_tokens": 40} | told
    for more, kind in (({}, "message"), ({"tools": [add], "tool_choice": "required"}, "function_call")):
        status, whole = ask(server, "/v1/responses", **asked, **more)
        assert (status, [item["type"] for item in whole["output"]]) == (200, [kind]), whole
        with closing(server.connect("POST", "/v1/responses", asked | more | {"stream": True}, "k")) as connection:
            last = [*events_of(connection.getresponse())][-1]["response"]
        assert last["output"][0] | {"id": "", "call_id": ""} == whole["output"][0] | {"id": "", "call_id": ""}
        assert last["metrics"] == whole["metrics"]
        assert last["metrics"]["speculative_decoding"]["acceptance_report"]["steps"] > 0
        if kind == "message":
            content = last["output"][0]["content"][0]
            assert "".join(each["token"] for each in content["logprobs"]) == content["text"]
