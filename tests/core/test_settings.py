"""A setting is a field of a request and nothing else: options, forms, keys, keywords and refusals come from it."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from annotated_types import Ge, Gt, Le, Lt

from cactus_decoding import Budget, Request, SamplingParams, parse_rule, speculative_generate
from cactus_decoding.cli.app import MISTAKE, app, run
from cactus_decoding.cli.help import commands_of
from cactus_decoding.core.declared import Declared, settings_of, switch
from cactus_decoding.core.keywords import RequestSettings
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.request import DECODING, SETTINGS
from cactus_decoding.engines.llama_cpp.server.completion import read_completion
from cactus_decoding.engines.openai.keys import BUDGET_KEY, KEYS, POLICY_KEYS, RULE_KEY
from cactus_decoding.engines.vllm.extra_args import REQUEST_KEYS, ServerConfig, request_of
from cactus_decoding.lab.playground.form import FormLimits, form
from scripts.write_keywords import FILE, keywords

GIVEN = {"protect": "digits"}
"""What there must be for a setting of a part that there need not be."""


def wrong(setting: Declared) -> Iterator[Any]:
    """Yield values that a setting does not allow: out of its range, and of another kind."""
    least, most, *open_ends = map(setting.limit, (Ge, Le, Gt, Lt))
    if setting.kind in (int, float):
        yield from (end - 1 for end in (least,) if end is not None)
        yield from (end + 1 for end in (most,) if end is not None)
        yield from (end for end in open_ends if end is not None)
        yield from ("much", math.nan)
    if setting.kind is int:
        yield 1.5


def beside(name: str) -> dict[str, Any]:
    key = switch(SETTINGS[name].part)
    return {key: GIVEN[key]} if key in GIVEN and key != name else {}


REFUSED = [(name, value) for name, setting in SETTINGS.items() for value in wrong(setting)]
names = pytest.mark.parametrize(("name", "value"), REFUSED, ids=[f"{name}={value}" for name, value in REFUSED])


def test_most_settings_have_limits() -> None:
    assert len({name for name, _ in REFUSED}) >= 11
    assert all(setting.doc.endswith(".") for setting in SETTINGS.values())


@names
def test_python_names_the_setting(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must be .*, but is {re.escape(repr(value))}"):
        Request.from_dict(beside(name) | {"rule": "clamped:width=1", name: value})


@names
def test_the_command_line_names_the_option(name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    option = "--budget" if name == "budget_nats" else f"--{name.replace('_', '-')}"
    given = [f"--{key}={GIVEN[key]}" for key in beside(name)]
    if name == "expected_tokens":
        given = ["--budget=1"]
    assert run(["generate", "a prompt", "--rule", "clamped:width=1", *given, f"{option}={value}"]) == MISTAKE
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "Traceback" in err) == ("", 1, False)
    assert option in err or f"{name} must be" in err
    assert str(value) in err


ASKED = [
    (BUDGET_KEY if name == "budget_nats" else name, value)
    for name, value in REFUSED
    if name in ("budget_nats", *POLICY_KEYS)
]


@pytest.mark.parametrize(("key", "value"), ASKED, ids=[f"{key}={value}" for key, value in ASKED])
def test_servers_name_the_key(key: str, value: Any) -> None:
    server = Request("cactus:delta=1", policy=relaxation_policy(**GIVEN))
    with pytest.raises((TypeError, ValueError), match=f"^{key} must be"):
        request_of({RULE_KEY: "clamped:width=1", key: value}, server)
    with pytest.raises((TypeError, ValueError), match=f"^{key} must be"):
        read_completion({"prompt": "Hi", RULE_KEY: "clamped:width=1", key: value}, GIVEN, chat=False)


SAMPLED = [
    (name, value)
    for name, value in REFUSED
    if name in settings_of(SamplingParams) and (name, value) != ("top_k", -1)  # which keeps all, as for OpenAI
]


@pytest.mark.parametrize(("name", "value"), SAMPLED, ids=[f"{name}={value}" for name, value in SAMPLED])
def test_a_server_of_llama_cpp_names_what_it_samples_by(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be"):
        read_completion({"prompt": "Hi", name: value}, {}, chat=False)


@pytest.mark.parametrize("name", [*SETTINGS])
def test_names_that_nobody_declared_are_unknown_everywhere(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TypeError, match=f"a request has no '{name}z'; known are rule, "):
        Request.from_dict({f"{name}z": 1})
    assert run(["generate", "a prompt", f"--{name.replace('_', '-')}z=1"]) == MISTAKE
    assert "there is no option" in capsys.readouterr().err
    if name in POLICY_KEYS:
        with pytest.raises(ValueError, match=f"there is no key '{name}z'; did you mean '{name}'"):
            request_of({f"{name}z": 1})
        with pytest.raises(ValueError, match=f"a request has no '{name}z'"):
            read_completion({"prompt": "Hi", f"{name}z": 1}, {}, chat=False)


# --- a setting is its field and nothing else ---

GREEDY = SamplingParams(temperature=0)


@pytest.mark.parametrize("name", [*SETTINGS])
def test_a_setting_stands_wherever_it_can_be_made(name: str) -> None:
    setting = SETTINGS[name]
    assert {option.name for option in commands_of(app)["generate"].params} >= {name}
    fields = [each["name"] for part in form(FormLimits(), models=True)["settings"] for each in part["fields"]]
    assert (name in fields) is (name != "rule")  # which the page chooses in its own way
    assert name in RequestSettings.__annotations__
    assert name in inspect.signature(speculative_generate).parameters or name not in DECODING
    assert name in Request(budget=Budget(1, max_relaxed=1), rule="relaxed_greedy:margin=1", sampling=GREEDY).as_dict()
    if setting.setting.from_clients:
        own = {"sampling", "answer"} & set(setting.groups)
        assert setting.key in KEYS or own
        assert setting.key in REQUEST_KEYS or own
        read_completion({"prompt": "Hi", setting.key: None}, {}, chat=False)  # the same as leaving it out


def test_what_no_call_of_another_library_takes_is_its_own() -> None:
    assert {*SETTINGS} - {*DECODING} == {
        "temperature", "top_k", "top_p", "min_p", "max_new_tokens", "stop", "seed",
        "budget_nats", "max_shift", "expected_tokens", "max_relaxed",
    }  # fmt: skip  # of the last four, which are given as one budget
    assert "budget" in inspect.signature(speculative_generate).parameters


def test_types_of_keyword_arguments_are_those_of_the_fields() -> None:
    assert FILE.read_text(encoding="utf-8") == keywords(), "run scripts/write_keywords.py"


def test_pydantic_describes_nothing_that_is_not_ours() -> None:
    for model in (Request, *(each.part for each in SETTINGS.values())):
        assert (model.model_config["frozen"], model.model_config["strict"], model.model_config["extra"]) == (
            True, True, "forbid",
        )  # fmt: skip


# --- what clients may send ---

NOT_FOR_CLIENTS: dict[str, Any] = {
    "rule": "antigravity:Rule,ratio=1",
    "protect": "(a+)+$",
    "relax_within": ["<" * 65, ">"],
    "max_shift": 0.1,
    "expected_tokens": 9,
    "max_relaxed": 1,
    "verification": "block",
    "num_speculative_tokens": "auto:profile=/etc/passwd",
    "tree": "static=2.2",
}


def test_every_setting_is_open_to_clients_or_tried_below() -> None:
    opened = {name for name, each in SETTINGS.items() if each.setting.from_clients is True}
    assert {*SETTINGS} - opened == {*NOT_FOR_CLIENTS}


@pytest.mark.parametrize("name", NOT_FOR_CLIENTS)
def test_what_imports_reads_files_or_takes_unlimited_time_is_refused_by_both_servers(name: str) -> None:
    key, value = SETTINGS[name].key, NOT_FOR_CLIENTS[name]
    rule = {} if key == RULE_KEY else {RULE_KEY: "clamped:width=1"}
    for read in (
        lambda: ServerConfig(num_speculative_tokens=4).read({**rule, key: value}),
        lambda: read_completion({"prompt": "Hi", **rule, key: value}, {}, chat=False),
        lambda: read_completion({"messages": [{"role": "user", "content": "Hi"}], **rule, key: value}, {}, chat=True),
    ):
        with pytest.raises((TypeError, ValueError)) as refused:
            read()
        assert key in str(refused.value)
        assert "\n" not in str(refused.value)
    assert "antigravity" not in sys.modules


SENT = {"rule": "cactus:delta=1", "protect": "digits", "relax_within": ["<a>", "</a>"], "stop": ["\n"]}
"""What a client may send of settings that are no numbers."""
OF_KINDS = {int: 3, float: 0.25, bool: True}


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each.setting.from_clients])
def test_what_clients_may_send_is_among_the_settings_of_their_answer(name: str, chat: bool) -> None:
    setting = SETTINGS[name]
    value = SENT.get(name, OF_KINDS.get(setting.kind))
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    read = read_completion(prompt | {RULE_KEY: "cactus:delta=1", setting.key: value}, beside(name), chat=chat).request
    meant = Request.from_dict(beside(name) | {name: tuple(value) if name == "stop" else value}).as_dict()[name]
    assert meant != Request.from_dict(beside(name)).as_dict()[name]
    assert read.as_dict()[name] == meant


def test_a_rule_that_the_server_was_started_with_may_be_named() -> None:
    with pytest.raises(ValueError, match=r"acceptance_rule: rule 'somewhere:Nowhere' is not taken from here"):
        read_completion({"prompt": "Hi", RULE_KEY: "somewhere:Nowhere"}, {}, chat=False)
    for spelling in ("lossless", "cactus:delta=1"):
        read = read_completion({"prompt": "Hi", RULE_KEY: spelling}, {}, chat=False).request
        assert read.rule == parse_rule(spelling)


@pytest.mark.parametrize("value", ["\ud800", "cactus:delta=\udfff", "digits|\ud800"])
def test_halves_of_characters_are_refused_in_words(value: str) -> None:
    for key in (RULE_KEY, "protect", "relax_within"):
        with pytest.raises((TypeError, ValueError)) as refused:
            read_completion({"prompt": "Hi", key: value}, {}, chat=False)
        assert str(refused.value).encode()  # what can be sent
