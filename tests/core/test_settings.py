"""Refusals, made from what settings declare: the same in Python, on the command line and in requests to servers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import pytest

from cactus_decoding import Request
from cactus_decoding.cli.app import MISTAKE, run
from cactus_decoding.core.knobs import Parameter, settings_of, switch
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.core.sampling.settings import SamplingSettings
from cactus_decoding.core.settings import PARTS, SETTINGS
from cactus_decoding.engines.llama_cpp.server.request import read_completion
from cactus_decoding.engines.openai.keys import BUDGET_KEY, POLICY_KEYS, RULE_KEY
from cactus_decoding.engines.vllm.request import request_of

GIVEN = {"protect": "digits", "importance": "importance.safetensors"}
"""What there must be for a setting of a part that there need not be."""


def wrong(setting: Parameter) -> Iterator[Any]:
    """Yield values that a setting does not allow: out of its range, and of another kind."""
    knob = setting.knob
    if setting.kind in (int, float):
        yield from (end - 1 for end in (knob.ge,) if end is not None)
        yield from (end + 1 for end in (knob.le,) if end is not None)
        yield from (end for end in (knob.gt, knob.lt) if end is not None)
        yield from ("much", math.nan)
    if setting.kind is int:
        yield 1.5


def beside(name: str) -> dict[str, Any]:
    """Return what goes with a setting."""
    part = next(part for part in PARTS.values() if name in settings_of(part))
    key = switch(part)
    return {key: GIVEN[key]} if key in GIVEN and key != name else {}


REFUSED = [(name, value) for name, setting in SETTINGS.items() for value in wrong(setting)]
names = pytest.mark.parametrize(("name", "value"), REFUSED, ids=[f"{name}={value}" for name, value in REFUSED])


def test_most_settings_have_limits() -> None:
    assert len({name for name, _ in REFUSED}) >= 11
    assert all(setting.knob.doc.endswith(".") for setting in SETTINGS.values())


@names
def test_python_names_the_setting(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name} must be .*, but is {re.escape(repr(value))}"):
        Request.from_dict(beside(name) | {"rule": "clamped:width=1", name: value})


@names
def test_the_command_line_names_the_option(name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    option = "--budget" if name == "budget_nats" else f"--{name.replace('_', '-')}"
    given = [f"--{key}={GIVEN[key]}" for key in beside(name) if key == "protect"]
    if name == "expected_tokens":
        given = ["--budget=1"]
    if value is math.nan and name == "max_importance":
        return  # the file of an importance, which is not there, is read before
    assert run(["generate", "a prompt", "--rule", "clamped:width=1", *given, f"{option}={value}"]) == MISTAKE
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "Traceback" in err) == ("", 1, False)
    assert option in err or f"{name} must be" in err
    assert str(value) in err


KEYS = [
    (BUDGET_KEY if name == "budget_nats" else name, value)
    for name, value in REFUSED
    if name in ("budget_nats", *POLICY_KEYS)
]


@pytest.mark.parametrize(("key", "value"), KEYS, ids=[f"{key}={value}" for key, value in KEYS])
def test_servers_name_the_key(key: str, value: Any) -> None:
    server = Request("cactus:delta=1", policy=relaxation_policy(**GIVEN))
    with pytest.raises((TypeError, ValueError), match=f"^{key} must be"):
        request_of({RULE_KEY: "clamped:width=1", key: value}, server)
    with pytest.raises((TypeError, ValueError), match=f"^{key} must be"):
        read_completion({"prompt": "Hi", RULE_KEY: "clamped:width=1", key: value}, GIVEN, chat=False)


SAMPLED = [
    (name, value)
    for name, value in REFUSED
    if name in settings_of(SamplingSettings) and (name, value) != ("top_k", -1)  # which keeps all, as for OpenAI
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
    assert "No such option" in capsys.readouterr().err
    if name in POLICY_KEYS:
        with pytest.raises(ValueError, match=f"there is no key '{name}z'; did you mean '{name}'"):
            request_of({f"{name}z": 1})
        with pytest.raises(ValueError, match=f"a request has no '{name}z'"):
            read_completion({"prompt": "Hi", f"{name}z": 1}, {}, chat=False)
