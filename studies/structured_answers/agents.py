"""What agents and clients send that went wrong elsewhere: what came, and whether that is right.

    python -m studies.structured_answers.agents                  the bundled target answers, in under a minute
    python -m studies.structured_answers.agents --only-render    the table, from the result file

Requests are read and answered as the server of GGUF files does, without HTTP: where it says 400 with a sentence, the
sentence came. The bundled target has three chat templates: one that writes calls as JSON, one that writes them with
tags, and one that thinks. What a model writes of its own accord is given: there only the reading is examined.
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter
from transformers import AutoModelForCausalLM, AutoTokenizer

from cactus_decoding import zoo
from cactus_decoding.core.pair import Pair
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.pairs import load_gguf_pair
from cactus_decoding.engines.llama_cpp.server.call_grammar import CallMarks
from cactus_decoding.engines.llama_cpp.server.completion import Completion, prompts_of, read_completion
from cactus_decoding.engines.openai.responses import ResponsesBody, ResponseWriter, chat_of
from cactus_decoding.engines.openai.tool_calls import CallReader
from cactus_decoding.engines.openai.tool_formats import HERMES, MISTRAL_NAMED, QWEN_XML, ToolFormat
from scripts.bundled_gguf import write_gguf
from scripts.pages import table
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "agents.json"
_TOOLS = "{% if tools %}Tools: {{ tools | tojson }}\n{% endif %}"
TEMPLATES = {
    "json": _TOOLS + "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}; {% endfor %}Answer: ",
    "tags": "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}" + _TOOLS
    + "{% for m in messages %}{{ m.role }}: {{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n<function="
    "{{ call.function.name }}>\n{% for key, value in call.function.arguments | items %}<parameter={{ key }}>\n"
    "{{ value }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}; {% endfor %}Answer: ",
    "thinks": "{% for m in messages %}{% if '</think>' in m.content %}{% endif %}{{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}",
}  # fmt: skip
USER = {"role": "user", "content": "Tom has 3 pens and finds 4. How many are there?"}
SYSTEM, RESULT = {"role": "system", "content": "Add."}, {"role": "tool", "tool_call_id": "c", "content": "7"}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
PARAMETERS = {
    "type": "object",
    "properties": {
        "a": NUMBER, "text": {"type": "string", "maxLength": 9}, "on": {"type": "boolean"},
        "more": {"properties": {"x": {"enum": [[], [1]]}}},
        "note": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]},
    },
    "required": ["a"],
}  # fmt: skip
DIGITS = Annotated[Decimal, Field(max_digits=6, decimal_places=2)]
# as pydantic 2.12 writes it
DECIMAL = {
    "anyOf": [
        {"type": "number"},
        {
            "type": "string",
            "pattern": r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,4}|(?=[\d.]{1,7}0*$)\d{0,4}\.\d{0,2}0*$)",
        },
    ]
}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name} | ({} if parameters is None else {"parameters": parameters})}


ADD, NOW = tool("add", PARAMETERS), tool("now", {})
TOOLS = [ADD, NOW]
NAMED = {"type": "function", "function": {"name": "add"}}


def called(arguments: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@dataclass(frozen=True)
class Found:
    """What came: a sentence of refusal, or an answer."""

    refusal: str = ""
    prompt: str = ""
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish_reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    reasoning: str = ""

    @property
    def arguments(self) -> list[Any]:
        """The arguments of calls, as clients read them."""
        return [json.loads(arguments) for _, arguments in self.calls]

    @property
    def thought(self) -> int:
        return int(
            (self.usage.get("completion_tokens_details") or self.usage["output_tokens_details"])["reasoning_tokens"]
        )

    @property
    def cached(self) -> int:
        return int(self.usage["prompt_tokens_details"]["cached_tokens"])

    @property
    def written(self) -> int:
        return int(self.usage.get("completion_tokens") or self.usage.get("output_tokens") or 0)


@dataclass(frozen=True)
class Case:
    """What was sent, or written by a model, and what is right."""

    kind: str
    title: str
    sent: Any  # a request's fields, or a text
    right: Callable[[Found], bool]
    model: str = "json"
    form: ToolFormat | None = None  # to which a constraint holds a text
    reads: str = "kept"  # JSON without a mark
    api: str = "chat"  # or ``stream``, or ``responses``
    seeds: int = 1


def text(title: str, said: str, calls: Any, content: str = "", form: ToolFormat | None = QWEN_XML, **more: Any) -> Case:
    """Return a case of a text that a model writes, and the calls that are in it."""

    def right(found: Found) -> bool:
        return (found.arguments, found.content) == (calls, content)

    kind = "calls in tags" if form is QWEN_XML else "calls in other forms"
    return Case(kind, title, said, right, form=form, **more)


_A, _END = "<tool_call>\n<function=add>\n<parameter=a>\n5\n</parameter>\n", "</function>\n</tool_call>"
_JSON = '{"name": "add", "arguments": {"a": 5}}'
_BROKEN = '<tool_call>\n{"name": "add", "arguments": {"a": 5 "text"}}\n</tool_call>'


def _parameter(name: str, value: str) -> str:
    return f"{_A}<parameter={name}>\n{value}\n</parameter>\n{_END}"


def request(kind: str, title: str, right: Callable[[Found], bool], model: str = "json", **sent: Any) -> Case:
    """Return a case of a request, which is seeded and short."""
    how = {name: sent.pop(name) for name in ("api", "seeds") if name in sent}
    asked = {"messages": [USER], "seed": 1, "max_tokens": 60, "temperature": 1.0}
    if how.get("api") == "responses":
        asked = {"input": USER["content"], "seed": 1, "max_output_tokens": 60, "temperature": 1.0}
    return Case(kind, title, asked | sent, right, model=model, **how)


def refused(part: str) -> Callable[[Found], bool]:
    return lambda found: part in found.refusal


def _valid(found: Found) -> bool:
    return bool(found.calls) and all(isinstance(each, dict) for each in found.arguments)


_LIST = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "items": NUMBER, "maxItems": 2}}}
_ALLOWED = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
_ALLOWED_CHOICE = {"type": "allowed_tools", "allowed_tools": _ALLOWED}
_NEVER = {"properties": {"a": {}, "b": True, "c": {"not": {}}}, "required": ["a"]}
_FORMED = {"type": "json_schema", "name": "add", "schema": PARAMETERS}
_UNIQUE = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "uniqueItems": True}}}
_OF_DECIMAL = {"type": "json_schema", "json_schema": {"schema": DECIMAL}}
_TYPED = {"type": "json_schema", "json_schema": {"schema": {"anyOf": [NUMBER, {"type": "null"}]}}}
CASES = [
    text("one call", f"So:\n{_A}{_END}", [{"a": 5}], "So:"),
    text("on one line", "<tool_call><function=add><parameter=a>5</parameter></function></tool_call>", [{"a": 5}]),
    text("two calls", f"{_A}{_END}\n<tool_call>\n<function=now>\n{_END}", [{"a": 5}, {}]),
    text("digits in a text", _parameter("text", "42"), [{"a": 5, "text": "42"}]),
    text("a truth value of Python", _parameter("on", "True"), [{"a": 5, "on": True}]),
    text("null, or a text", _parameter("note", "null"), [{"a": 5, "note": None}]),
    text("an object", _parameter("more", '{"x": [1]}'), [{"a": 5, "more": {"x": [1]}}]),
    text("quotes and signs", _parameter("text", 'if a < b: "x"'), [{"a": 5, "text": 'if a < b: "x"'}]),
    text("without the outer mark", "<function=now>\n</function>", [{}]),
    text("an unknown tool", f"{_A.replace('add', 'mul')}{_END}", [], f"{_A.replace('add', 'mul')}{_END}", form=None),
    request("calls in tags", "`required`", lambda f: _valid(f) and "<" not in f.content, "tags", tools=TOOLS,
            tool_choice="required", parallel_tool_calls=False, max_tokens=200, seeds=10),
    request("calls in tags", "`required`, streamed", _valid, "tags", tools=TOOLS, tool_choice="required", api="stream",
            parallel_tool_calls=False, max_tokens=200, seeds=10),
    text("named, with `[ARGS]`", '[TOOL_CALLS]add[ARGS]{"a": 5}[TOOL_CALLS]now[ARGS]{}', [{"a": 5}, {}],
         form=MISTRAL_NAMED),
    text("JSON without a mark", f"So {_JSON}.", [{"a": 5}], "So.", form=HERMES),
    text("fenced JSON", f"```json\n{_JSON}\n```", [{"a": 5}], form=HERMES),
    text("the same, said to be text", f"So {_JSON}.", [], f"So {_JSON}.", form=HERMES, reads="text"),
    text("JSON that is broken", _BROKEN, [], _BROKEN, form=None, reads="read"),
    text("a list as arguments", _JSON.replace('{"a": 5}', "[5]"), [], _JSON.replace('{"a": 5}', "[5]"), form=None,
         reads="read"),
    request("calls in other forms", "`required` at temperature 2", _valid, tools=TOOLS, tool_choice="required",
            parallel_tool_calls=False, temperature=2.0, max_tokens=200, seeds=10),
    request("usage", "the first turn", lambda f: 0 <= f.cached < f.usage["prompt_tokens"]),
    request("usage", "the second turn", lambda f: 10 < f.cached < f.usage["prompt_tokens"],
            messages=[USER, {"role": "assistant", "content": "7"}, {"role": "user", "content": "And?"}]),
    request("usage", "thinking", lambda f: 0 < f.thought <= f.written, "thinks", thinking_budget=8,
            response_format=_LIST),
    request("usage", "thinking, streamed", lambda f: 0 < f.thought <= f.written, "thinks", thinking_budget=8,
            response_format=_LIST, api="stream"),
    request("usage", "thinking, in a response", lambda f: 0 < f.thought <= f.written, "thinks", thinking_budget=8,
            api="responses"),
    request("effort", "`none`", lambda f: not f.reasoning and f.thought == 0, "thinks", reasoning_effort="none",
            response_format=_LIST),
    request("effort", "`high`", lambda f: bool(f.reasoning) and f.thought > 0, "thinks", reasoning_effort="high",
            response_format=_LIST, thinking_budget=8),
    request("effort", "`none`, in a response", lambda f: f.thought == 0, "thinks", reasoning={"effort": "none"},
            api="responses"),
    request("effort", "a template that knows none", refused("'low' is not served"), reasoning_effort="low"),
    request("effort", "a summary", refused("but has summary"), reasoning={"summary": "detailed"}, api="responses"),
    request("names", "`repetition_penalty`", lambda f: f.written > 0, repetition_penalty=1.2),
    request("names", "`min_tokens`", lambda f: f.written >= 40, min_tokens=40),
    request("names", "`ignore_eos`", lambda f: (f.written, f.finish_reason) == (60, "length"), ignore_eos=True),
    request("names", "`stop_token_ids`", refused("from 0 to"), stop_token_ids=[10**6]),
    request("names", "`allowed_tools`", lambda f: {name for name, _ in f.calls} == {"now"}, tools=TOOLS,
            tool_choice=_ALLOWED_CHOICE),
    request("names", "a form beside a forced tool", _valid, api="responses", text={"format": _FORMED},
            tools=[{"type": "function"} | ADD["function"]], tool_choice={"type": "function", "name": "add"}),
    request("names", "`uniqueItems`", refused("uniqueItems at # is not supported"), response_format=_UNIQUE),
    request("numbers", "a decimal of six digits", lambda f: bool(TypeAdapter(DIGITS).validate_json(f.content) + 1),
            response_format=_OF_DECIMAL, seeds=10),
    request("numbers", "bounds in a union", lambda f: json.loads(f.content) in (None, *range(100)),
            response_format=_TYPED, seeds=10),
    request("histories", 'arguments `""`', lambda f: '"arguments": {}}' in f.prompt,
            messages=[USER, called(""), RESULT]),
    request("histories", "arguments null", lambda f: "<function=add>\n</function>" in f.prompt, "tags",
            messages=[USER, called(None), RESULT]),
    request("histories", "arguments that are no JSON", refused("chat template fails: Can only get item pairs"), "tags",
            messages=[USER, called("a is 1"), RESULT]),
    request("histories", "a list as arguments", lambda f: '"arguments": [1]' in f.prompt,
            messages=[USER, called("[1]"), RESULT]),
    request("histories", "no user", lambda f: "tool: 7" in f.prompt, messages=[SYSTEM, called('{"a": 1}'), RESULT]),
    request("histories", "no user, where one is needed", refused("fails: No user query found"), "tags",
            messages=[SYSTEM, called('{"a": 1}'), RESULT]),
    request("histories", "a developer", lambda f: "system: Add." in f.prompt,
            messages=[SYSTEM | {"role": "developer"}, USER]),
    request("no parameters", "`{}`", lambda f: f.arguments == [{}] and f.written < 40, tools=[NOW],
            tool_choice="required"),
    request("no parameters", "absent", lambda f: f.arguments == [{}] and f.written < 40, tools=[tool("now")],
            tool_choice="required"),
    request("no parameters", "`additionalProperties: false`", lambda f: f.arguments == [{}] and f.written < 40,
            tools=[tool("now", {"type": "object", "additionalProperties": False})], tool_choice="required"),
    request("no parameters", "no type, `true`, and `not: {}`", lambda f: bool(f.calls) and '"c":' not in f.calls[0][1],
            tools=[ADD, tool("odd", _NEVER)], tool_choice={"type": "function", "function": {"name": "odd"}}),
]  # fmt: skip


def load(folder: Path) -> dict[str, Pair]:
    """Return the bundled target with each template; that which thinks has two more tokens."""
    pairs = {}
    for name, template in TEMPLATES.items():
        tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
        model = AutoModelForCausalLM.from_pretrained(zoo.path("target"))
        if name == "thinks":
            tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        tokenizer.chat_template = template
        path = folder / f"{name}.gguf"
        write_gguf(model.float(), tokenizer, path, "float32")
        file = parse_gguf(f"{path}:cache=float32,context_size=1024")
        assert file is not None
        pairs[name] = load_gguf_pair(file, "suffix", kept_prompts=2)
    return pairs


def answer(case: Case, pair: Pair, seed: int) -> Found:
    """Return what comes of a case."""
    if isinstance(case.sent, str):
        known = {each["function"]["name"]: each["function"].get("parameters", {}) for each in TOOLS}
        said, calls = CallReader(known, form=case.form, unmarked=case.reads).whole(case.sent)  # type: ignore[arg-type]
        return Found(
            content=said or "", calls=tuple((c["function"]["name"], c["function"]["arguments"]) for c in calls)
        )
    try:
        return _answered(case, pair, case.sent | {"seed": seed})
    except (TypeError, ValueError) as error:
        return Found(refusal=str(error))


def _answered(case: Case, pair: Pair, sent: dict[str, Any]) -> Found:
    responses = ResponsesBody.read(sent) if case.api == "responses" else None
    body = sent if responses is None else chat_of(responses, sent)
    body |= {"stream": True, "stream_options": {"include_usage": True}} if case.api == "stream" else {}
    asked = read_completion(body, {}, chat=True, pair=pair, marks=CallMarks.of(pair.tokenizer))
    [prompt] = prompts_of(pair, asked)
    made, read = Completion(pair, asked, [prompt], "m"), str(pair.tokenizer.decode(prompt))  # type: ignore[union-attr]
    if responses is not None:
        told = ResponseWriter(responses).whole(made.chunks())
        parts = [each for each in told["output"] if each["type"] == "function_call"]
        calls = tuple((each["name"], each["arguments"]) for each in parts)
        return Found(prompt=read, calls=calls, usage=told["usage"], finish_reason=told["status"])
    if case.api == "stream":
        chunks = [*made.chunks()]
        deltas = [each["choices"][0]["delta"] for each in chunks[:-1]]
        written: dict[int, list[str]] = {}
        for part in (part for delta in deltas for part in delta.get("tool_calls", [])):
            function = part["function"]
            kept = written.setdefault(part["index"], [function.get("name", ""), ""])
            kept[1] += function["arguments"]
        content, reasoning = ("".join(d.get(n) or "" for d in deltas) for n in ("content", "reasoning_content"))
        calls = tuple((name, arguments) for name, arguments in written.values())
        return Found("", read, content, calls, "", chunks[-1]["usage"], reasoning)
    whole = made.whole()
    [choice] = whole["choices"]
    message = choice["message"]
    calls = tuple((each["function"]["name"], each["function"]["arguments"]) for each in message.get("tool_calls", []))
    reasoning = message.get("reasoning_content", "")
    return Found("", read, message["content"] or "", calls, choice["finish_reason"], whole["usage"], reasoning)


def came(case: Case, found: Found) -> str:
    """Return what came, in a few words."""
    if found.refusal:
        return f"400: {found.refusal}"
    if case.kind in ("usage", "effort"):
        counted = {"cached": found.cached} if "turn" in case.title else {"reasoning": found.thought}
        return ", ".join(f"{name} {number}" for name, number in counted.items()) + f" of {found.written} written"
    if case.kind == "histories":
        return found.prompt[-60:]
    if found.calls:
        return " ".join(f"{name}({arguments})" for name, arguments in found.calls)
    return found.content if isinstance(case.sent, str) or case.kind == "numbers" else f"{found.written} tokens"


def sent(case: Case) -> str:
    if isinstance(case.sent, str):
        return f"the model writes: {case.sent}"
    usual = ("messages", "input", "seed", "max_tokens", "max_output_tokens", "temperature")
    told = {name: value for name, value in case.sent.items() if name not in usual}
    if case.kind == "histories" or not told:
        told = {"messages": case.sent["messages"]}
    return json.dumps(told)


def measure(given: Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        pairs, cases = load(Path(folder)), list[dict[str, Any]]()
        for case in CASES:
            found = [answer(case, pairs[case.model], seed) for seed in range(1, 1 + case.seeds)]
            right = [_is_right(case, each) for each in found]
            shown = next((each for each, fine in zip(found, right, strict=True) if not fine), found[0])
            cases.append({
                "kind": case.kind, "title": case.title, "sent": sent(case), "came": came(case, shown),
                "right": sum(right), "of": len(right),
            })  # fmt: skip
    return {"cases": cases}


def _is_right(case: Case, found: Found) -> bool:
    try:
        return case.right(found)
    except (ValueError, KeyError, TypeError):
        return False


def shown(result: Mapping[str, Any]) -> dict[str, str]:
    rows = [
        [
            each["kind"],
            each["title"],
            _cell(each["sent"], 90),
            _cell(each["came"], 90),
            f"{each['right']} of {each['of']}",
        ]
        for each in result["cases"]
    ]
    right, of = (sum(each[name] for each in result["cases"]) for name in ("right", "of"))
    rows.append(["**all**", "", "", "", f"{right} of {of}"])
    return {"agents": table(["kind", "case", "sent", "came", "right"], rows, names=4)}


def _cell(text: str, longest: int = 90) -> str:
    """Return a text as code in a table's cell, on one line, and cut."""
    line = " ".join(text.replace("`", "'").split()).replace("|", r"\|")
    return f"`{line if len(line) <= longest else line[: longest - 1] + '…'}`" if line else ""


if __name__ == "__main__":
    study(__doc__, RESULTS, "studies/structured_answers.md", measure, shown)
