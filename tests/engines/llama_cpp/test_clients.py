"""Requests in the shapes that clients send, and what each of these clients reads in the answer."""

import json
import os
import subprocess
import sys

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from support.client_requests import CHATS, TEXTS
from support.code_blocks import ROOT
from support.gguf_files import completions
from support.llama_server import serving
from support.tables import all_of

from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.zoo.word_problems import EXAMPLES
from scripts.bundled_gguf import write_bundled
from scripts.serve_soak import TEMPLATE


@pytest.fixture(scope="module")
def ask(tmp_path_factory, gguf):
    target = write_bundled("target", tmp_path_factory.mktemp("chat"), "float32", TEMPLATE)
    file = parse_gguf(f"{target}:cache=float32,context_size=1024")
    pair = load_gguf_pair(file, f"{gguf('worded')}:cache=float32", kept_prompts=1)
    answering = completions(pair, num_speculative_tokens=4)
    return lambda body: answering(**{"seed": 3} | body)


def read_by_openai(completion, stream):
    """Return what OpenAI's own package reads of an answer, or puts together from its chunks."""
    if not stream:
        return ChatCompletion.model_validate(json.loads(json.dumps(completion.whole())))
    state = ChatCompletionStreamState()
    for chunk in completion.chunks():
        state.handle_chunk(ChatCompletionChunk.model_validate(json.loads(json.dumps(chunk))))
    return state.current_completion_snapshot


def check_choice(choice, body):
    """Check what clients read of a choice: text, calls, or JSON of the form that was asked for."""
    message, ended, calls = choice.message, choice.finish_reason, choice.message.tool_calls or []
    assert (message.role, ended in ("stop", "length", "tool_calls")) == ("assistant", True)
    assert ended != "tool_calls" or calls
    for call in calls:
        assert (call.id[:5], call.type) == ("call_", "function")
        assert call.function.name in [each["function"]["name"] for each in body["tools"]]
        assert ended == "length" or json.loads(call.function.arguments) is not None
    assert ended == "length" or not body.get("tool_choice") or len(calls) == 1
    if body.get("response_format", {"type": "text"})["type"] != "text" and ended == "stop":
        assert isinstance(json.loads(message.content), dict)
    if body.get("logprobs"):
        told = choice.logprobs.content
        assert b"".join(bytes(each.bytes) for each in told).decode().startswith(message.content)
        assert {len(each.top_logprobs) for each in told} <= {body.get("top_logprobs", 0)}
        assert all(each.logprob <= 0 for each in told)


@all_of("client", CHATS)
def test_clients_find_in_a_conversation_s_answer_what_they_read(ask, client):
    body = CHATS[client]
    streamed = body.get("stream", False)
    answer = read_by_openai(ask(body), streamed)
    assert len(answer.choices) == body.get("n", 1)
    for choice in answer.choices:
        check_choice(choice, body)
    assert (getattr(answer, "metrics", None) is not None) == ("acceptance_report" in body)
    assert (answer.usage is not None) == (not streamed or "stream_options" in body)
    if answer.usage is not None:
        most = body.get("max_tokens", body.get("max_completion_tokens", 1024)) * len(answer.choices)
        assert 0 < answer.usage.completion_tokens <= most
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@all_of("client", TEXTS)
def test_clients_find_in_a_completion_what_they_read(ask, client):
    body = TEXTS[client]
    whole, prompts = ask(body).whole(), body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    assert whole["object"] == "text_completion"
    assert [each["index"] for each in whole["choices"]] == [*range(len(prompts))]
    for choice in whole["choices"]:
        assert choice["finish_reason"] in ("stop", "length")
        assert (choice["logprobs"] is None) == (body.get("logprobs") is None)
        assert choice["text"]
    alone = [ask(body | {"prompt": each}).whole()["usage"]["prompt_tokens"] for each in prompts]
    assert whole["usage"]["prompt_tokens"] == sum(alone)


def test_several_prompts_are_completed_as_each_is_alone(ask):
    same = {"seed": 5, "n": 2, "max_tokens": 12, "echo": True, "temperature": 0}
    prompts = [EXAMPLES[0].prompt, EXAMPLES[1].prompt]
    alone = [choice["text"] for each in prompts for choice in ask(same | {"prompt": each}).whole()["choices"]]
    assert [choice["text"] for choice in ask(same | {"prompt": prompts}).whole()["choices"]] == alone
    parts = [chunk["choices"][0] for chunk in ask(same | {"prompt": prompts}).chunks()]
    assert ["".join(part["text"] for part in parts if part["index"] == index) for index in range(4)] == alone
    assert [text.startswith(prompts[index // 2]) for index, text in enumerate(alone)] == [True] * 4


@pytest.mark.slow
def test_clients_read_in_each_answer_what_they_need(gguf, tmp_path):
    """In a process of their own: they leave connections open."""
    target = write_bundled("target", tmp_path, "q8_0", TEMPLATE)
    given = [f"{target}:context_size=1024", "--draft", str(gguf("worded", "q8_0")), "--threads", "1", "--alias", "ours"]
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with serving(*given, "--parallel", "2", "--num-speculative-tokens", "3", "--port", "0") as running:
        command = [sys.executable, "-m", "support.clients_asked", f"http://127.0.0.1:{running.port}/v1"]
        asked = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
    rows = json.loads(asked.stdout)
    assert {row["client"] for row in rows} == {"OpenAI", "LangChain", "Pydantic AI", "Open WebUI"}
    assert [row for row in rows if not row["right"]] == []
