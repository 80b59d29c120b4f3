"""Requests as clients send them, recorded: those of OpenAI's, LangChain, LiteLLM, llama-index and Open WebUI."""

from __future__ import annotations

from cactus_decoding.zoo.word_problems import EXAMPLES

USER = {"role": "user", "content": EXAMPLES[0].question}
SAID = [{"content": EXAMPLES[0].question, "role": "user"}]
N = {"properties": {"n": {"title": "N", "type": "integer"}}, "required": ["n"], "title": "N", "type": "object"}
STRICT = {
    "type": "json_schema",
    "json_schema": {"schema": N | {"additionalProperties": False}, "name": "N", "strict": True},
}
NUMBERS = {"a": {"title": "A", "type": "integer"}, "b": {"title": "B", "type": "integer"}}
ADD = {"properties": NUMBERS, "required": ["a", "b"], "type": "object"}
TOOLS = [{"type": "function", "function": {"name": "add", "description": "add(a, b) -> int\nAdds", "parameters": ADD}}]
TOOL_N = [{"type": "function", "function": {"name": "N", "description": "", "parameters": N}}]
NAMED_N = {"type": "function", "function": {"name": "N"}}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SHORT = {"model": "gpt-4o", "max_completion_tokens": 30, "temperature": 0.0}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "5"}
CHATS = {
    "openai, create": {"messages": [USER], "model": "any", "max_tokens": 12, "seed": 1},
    "openai, stream": {"messages": [USER], "model": "any", "logprobs": True, "max_tokens": 12, "seed": 1} | USAGE,
    "openai, n": {"messages": [USER], "model": "any", "max_tokens": 8, "n": 2},
    "openai, parse": {
        "messages": [USER], "model": "any", "max_tokens": 60, "response_format": STRICT, "stream": False,
    },
    "openai, tools required": {
        "messages": [USER], "model": "any", "max_tokens": 60, "tool_choice": "required", "tools": TOOLS,
    },
    "openai, tools streamed": {
        "messages": [USER], "model": "any", "max_tokens": 60, "stream": True, "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "add"}},
    },
    "openai, a tool's result": {
        "messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALLED]}, RESULT], "model": "any",
        "max_tokens": 8, "tools": TOOLS,
    },
    "openai, everything else": {
        "messages": [
            {"role": "developer", "content": "Be brief"},
            {"role": "user", "content": [{"type": "text", "text": EXAMPLES[0].question}], "name": "bob"},
        ],
        "model": "any", "logit_bias": {"50": -1}, "max_completion_tokens": 5, "metadata": {"k": "v"},
        "modalities": ["text"], "parallel_tool_calls": True, "prediction": {"type": "content", "content": "x"},
        "prompt_cache_key": "p", "reasoning_effort": "none", "safety_identifier": "s", "service_tier": "auto",
        "store": False, "user": "u", "verbosity": "low",
    },
    "openai, our keys": {
        "messages": [USER], "model": "any", "max_tokens": 12, "acceptance_rule": "clamped:width=1",
        "acceptance_report": True,
    },
    "langchain, invoke": SHORT | {"messages": SAID, "stream": False},
    "langchain, stream": SHORT | {"messages": SAID, "n": 1, "seed": 3, "stop": ["!"]} | USAGE,
    "langchain, structured": SHORT | {"messages": SAID, "response_format": STRICT, "stream": False},
    "langchain, JSON": SHORT | {"messages": SAID, "response_format": {"type": "json_object"}, "stream": False},
    "langchain, a function": SHORT | {
        "messages": SAID, "parallel_tool_calls": False, "stream": False, "tool_choice": NAMED_N, "tools": TOOL_N,
    },
    "langchain, tools": SHORT | {"messages": SAID, "stream": False, "tools": TOOLS},
    "langchain, log-probabilities": SHORT | {"messages": SAID, "logprobs": True, "stream": False},
    "langchain, effort": {
        "messages": SAID, "model": "o3-mini", "max_completion_tokens": 5, "reasoning_effort": "none", "stream": False,
    },
    "litellm, completion": {
        "messages": [USER], "model": "x", "logprobs": True, "max_tokens": 6, "n": 2, "presence_penalty": 0.1,
        "seed": 1, "stop": ["."], "top_logprobs": 2, "user": "me",
    },
    "litellm, stream": {"messages": [USER], "model": "x", "max_tokens": 8} | USAGE,
    "litellm, schema": {"messages": [USER], "model": "x", "max_tokens": 60, "response_format": STRICT},
    "litellm, tools": {
        "messages": [USER], "model": "x", "max_tokens": 60, "seed": 1, "tool_choice": "required", "tools": TOOLS,
    } | USAGE,
    "litellm, a tool's result": {
        "messages": [USER, {"role": "assistant", "tool_calls": [CALLED]}, RESULT], "model": "x", "max_tokens": 8,
        "seed": 1, "tools": TOOLS,
    },
    "litellm, hosted_vllm": {"model": "x", "messages": [USER], "max_tokens": 6, "acceptance_rule": "clamped:width=1"},
    "llama-index, chat": {
        "messages": [{"role": "system", "content": "Be brief"}, USER], "model": "x", "max_tokens": 8,
        "stream": False, "temperature": 0.1,
    },
    "llama-index, stream": {"messages": [USER], "model": "x", "max_tokens": 8, "stream": True, "temperature": 0.1},
    "llama-index, tools": {
        "messages": [USER], "model": "x", "max_tokens": 60, "parallel_tool_calls": False, "stream": False,
        "temperature": 0.1, "tool_choice": "required", "tools": TOOLS,
    },
    "open webui, chat": {"model": "m", "messages": [{"role": "system", "content": "User Context:\n"}, USER]} | USAGE,
    "open webui, parameters": {
        "model": "m", "messages": [USER], "max_tokens": 5, "temperature": 0.8, "top_p": 0.9, "min_p": 0.05,
        "frequency_penalty": 0.1, "presence_penalty": 0.1, "reasoning_effort": "none", "seed": 7, "stop": ["\n\n"],
        "logit_bias": {"50": -3}, "top_k": 40, "repeat_penalty": 1.1, "response_format": {"type": "text"},
    } | USAGE,
    "open webui, a title": {"model": "m", "messages": [USER], "stream": False, "max_completion_tokens": 1000},
    "open webui, native tools": {
        "model": "m", "max_tokens": 30, "tools": TOOLS, "messages": [
            USER, {"role": "assistant", "content": "", "tool_calls": [{"index": 0} | CALLED]}, RESULT],
    } | USAGE,
}  # fmt: skip
"""Bodies as the clients send them; of Open WebUI's, what its own settings fill in."""
TEXTS = {
    "openai": {"model": "any", "prompt": "Finn has", "logprobs": 2, "max_tokens": 4},
    "litellm": {"model": "x", "prompt": "Finn has", "max_tokens": 4},
    "llama-index": {"model": "x", "prompt": "Finn has", "max_tokens": 8, "stream": False, "temperature": 0.1},
    "langchain, a batch": {
        "model": "x", "prompt": ["Finn has", "Sam owns"], "frequency_penalty": 0, "logprobs": None, "max_tokens": 5,
        "n": 1, "presence_penalty": 0, "seed": None, "temperature": 0.7, "top_p": 1,
    },
}  # fmt: skip
