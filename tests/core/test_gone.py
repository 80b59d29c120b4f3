"""What users type and is gone: each way to type it is refused by a sentence that names what remains."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.tables import all_of

from cactus_decoding import Pair, Request, generate, load_pair, speculative_generate
from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.gone import GONE
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.engines.llama_cpp.server.completion import read_completion
from cactus_decoding.engines.vllm.extra_args import request_of
from cactus_decoding.lab import training
from cactus_decoding.lab.playground.form import FormLimits, read_request
from cactus_decoding.lab.training.losses import parse_loss

TRAIN = "train-draft --target bundled --draft bundled:worded --data word_problems:split=train --output {new}"
COMMANDS = [
    ("generate Hello --draft skip", "skip"),
    ("generate Hello --draft skip:layers=3-5,mlp=7", "skip"),
    ("eval --draft skip --output {new}", "skip"),
    ("frontier --draft skip --output {new}", "skip"),
    ("tune bundled skip", "skip"),
    ("play --draft skip:attention=all", "skip"),
    ("serve {gguf} --draft skip", "skip"),
    ("generate Hello --tree adaptive", "adaptive"),
    ("generate Hello --verification hsd", "hsd"),
    ("calibrate --max-nats 1", "calibrate"),
    ("demo --verbose", "verbose"),
    ("diagnose --problems 9", "diagnose"),
    ("generate Hello --adapt {new}", "adapt"),
    (f"{TRAIN} --filter adaspec", "filter"),
    (f"{TRAIN} --loss relaxed:clamped:width=3", "relaxed"),
    ("learn-importance --output {new}", "learn_importance"),
    ("show {new}", "show"),
]
"""What is typed, and the name of `GONE` whose sentence must be in the answer."""
SETTINGS = [
    ({"verification": "hsd"}, "hsd"),
    ({"verification": "multipath"}, "multipath"),
    ({"verification": "recursive"}, "recursive"),
    ({"verification": "traversal"}, "traversal"),
    ({"tree": "adaptive"}, "adaptive"),
    ({"tree": "independent,drafts=2"}, "independent"),
]
CALLS = {
    "load_pair": (lambda gguf: load_pair(draft="skip"), "skip"),
    "with_draft": (lambda gguf: load_pair().with_draft("skip:layers=3"), "skip"),
    "CactusLlama": (lambda gguf: llama(gguf, draft="skip:mlp=all"), "skip"),
    "parse_loss": (lambda gguf: parse_loss("relaxed:clamped:width=3"), "relaxed"),
    "DraftAdaptation": (lambda gguf: training.DraftAdaptation, "draftadaptation"),
    "diagnose": (lambda gguf: training.diagnose, "diagnose"),
}


def said_of(name: str) -> str:
    return f"it is gone: use {GONE[name]}"


def llama(path: Any, **given: Any) -> object:
    from cactus_decoding.engines.llama_cpp import CactusLlama

    return CactusLlama(path, **given)


@pytest.mark.parametrize(("typed", "name"), COMMANDS, ids=[typed for typed, _ in COMMANDS])
def test_commands_name_what_remains(run, gguf, tmp_path, typed, name):
    filled = {"{new}": str(tmp_path / "new"), "{gguf}": str(gguf("draft"))}
    code, _, error = run(*(filled.get(word, word) for word in typed.split()))
    assert code == 2
    assert said_of(name) in " ".join(error.split())


@pytest.mark.parametrize(("settings", "name"), SETTINGS)
def test_settings_name_what_remains(settings, name):
    with pytest.raises((TypeError, ValueError), match=re.escape(said_of(name))):
        Request.from_dict(settings)


@pytest.mark.parametrize("name", CALLS)
def test_calls_name_what_remains(gguf, name):
    call, gone = CALLS[name]
    with pytest.raises((AttributeError, ValueError), match=re.escape(said_of(gone))):
        call(gguf("draft"))


@all_of("name", GONE)
def test_a_name_that_is_gone_is_said_to_be_so_however_it_is_typed(name):
    for typed in (name, f"--{name.replace('_', '-')}", name.upper()):
        assert suggestion(typed, ["lossless"]) == f"; {said_of(name)}"


OF_REQUESTS = ("importance", "max_importance", "importance_scale", "recurring", "recurring_ratio")
"""Settings that are gone, and were typed as options, as keyword arguments and in requests to servers."""
RULE = {"acceptance_rule": "clamped:width=1"}


@all_of("name", OF_REQUESTS)
def test_a_setting_of_requests_that_is_gone_is_refused_wherever_it_is_typed(run, name: str, pair: Pair) -> None:
    prompt, model = "How many?", pair.target.model
    for typed in (
        lambda: Request(**{name: 1}),
        lambda: Request.from_dict({name: 1}),
        lambda: relaxation_policy(**{name: 1}),
        lambda: generate(pair, prompt, **{name: 1}),
        lambda: speculative_generate(model, pair.tokenizer(prompt, return_tensors="pt").input_ids, **{name: 1}),
        lambda: read_completion({"prompt": prompt, **RULE, name: 1}, {}, chat=False),
        lambda: read_completion({"messages": [{"role": "user", "content": prompt}], name: 1}, {}, chat=True),
        lambda: request_of(RULE | {name: 1}),
        lambda: request_of(RULE | {name: 1}, any_pattern=True),
        lambda: read_request({"prompt": prompt, "rules": ["lossless"], name: 1}, FormLimits(), models=True),
    ):
        with pytest.raises((TypeError, ValueError)) as refused:
            typed()
        assert said_of(name) in str(refused.value)
    for command in ("generate", "eval", "serve"):
        code, _, error = run(command, f"--{name.replace('_', '-')}", "1")
        assert code == 2
        assert said_of(name) in " ".join(error.split())
