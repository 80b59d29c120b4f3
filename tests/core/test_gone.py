"""What users typed once and is gone is refused in a sentence that names the nearest thing that remains."""

from __future__ import annotations

import pytest
from support.tables import all_of

from cactus_decoding import Pair, Request, generate, speculative_generate
from cactus_decoding.cli.app import MISTAKE, run
from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.gone import GONE
from cactus_decoding.core.policy.relaxation import relaxation_policy
from cactus_decoding.engines.llama_cpp.server.completion import read_completion
from cactus_decoding.engines.vllm.extra_args import request_of
from cactus_decoding.lab.playground.form import FormLimits, read_request

SETTINGS = (
    ({"verification": "hsd"}, "it is gone: use 'block', which keeps the same tokens"),
    ({"verification": "multipath"}, "it is gone: use tree='best_first', or a static one"),
    ({"verification": "recursive"}, "it is gone: use 'joint', or 'token'; studies/trees has it"),
    ({"verification": "traversal"}, "it is gone: use 'joint', or 'token'; studies/trees has it"),
    ({"tree": "adaptive"}, "it is gone: use num_speculative_tokens='auto', or tree='best_first,nodes=16'"),
    ({"tree": "independent,drafts=2"}, "it is gone: use tree='best_first', or a static one"),
)


@pytest.mark.parametrize(("settings", "said"), SETTINGS)
def test_a_setting_that_is_gone_names_what_remains(settings: dict[str, str], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        Request.from_dict(settings)


@all_of("name", GONE)
def test_a_name_that_is_gone_is_said_to_be_so_however_it_is_typed(name: str) -> None:
    for typed in (name, f"--{name.replace('_', '-')}", name.upper()):
        assert suggestion(typed, ["lossless"]) == f"; it is gone: use {GONE[name]}"


OF_REQUESTS = ("importance", "max_importance", "importance_scale", "recurring", "recurring_ratio")
"""Settings that are gone, and were typed as options, as keyword arguments and in requests to servers."""
COMMANDS = ("learn-importance", "show")
RULE = {"acceptance_rule": "clamped:width=1"}


@all_of("name", OF_REQUESTS)
def test_a_setting_of_requests_that_is_gone_is_refused_wherever_it_is_typed(name: str, pair: Pair) -> None:
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
        assert suggestion(name, ()) in str(refused.value)


@all_of("command", ["generate", "eval", "serve"])
def test_an_option_that_is_gone_names_what_remains(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name in OF_REQUESTS:
        assert run([command, f"--{name.replace('_', '-')}", "1"]) == MISTAKE
        assert suggestion(name, ()) in capsys.readouterr().err


@all_of("command", COMMANDS)
def test_a_command_that_is_gone_names_what_remains(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "file"]) == MISTAKE
    assert suggestion(command, ()) in capsys.readouterr().err
