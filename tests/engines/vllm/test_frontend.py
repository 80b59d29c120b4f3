"""Bad values are refused in the front end, with vLLM's own error; it answers them with HTTP 400."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm import frontend
from cactus_decoding.engines.vllm.frontend import with_check


class VLLMValidationError(ValueError):
    """Stands for vLLM's."""

    def __init__(self, message: str, parameter: str) -> None:
        super().__init__(message)
        self.parameter = parameter


@pytest.fixture(autouse=True)
def exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.exceptions")
    module.VLLMValidationError = VLLMValidationError
    monkeypatch.setitem(sys.modules, "vllm.exceptions", module)


def check_of(seen: list, **config: object):
    """Return the check of a server; the stock one notes what it is given."""
    standard = SimpleNamespace(rejection_sample_method="standard")
    given = {"speculative_config": standard, "additional_config": {}} | config
    return with_check(lambda processor: seen.append)(SimpleNamespace(vllm_config=SimpleNamespace(**given)))


def test_it_is_light_to_import() -> None:
    code = "import sys; from cactus_decoding.engines.vllm import frontend; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "tokenizers", "typer", "vllm"} & set(loaded)


def test_good_values_go_on_to_the_stock_check() -> None:
    seen: list = []
    good = [SimpleNamespace(extra_args=one) for one in (None, {"other": 1}, {"acceptance_rule": "cactus:delta=1"})]
    for params in good:
        check_of(seen)(params)
    assert seen == good


@pytest.mark.parametrize(
    ("asked", "config", "said"),
    [
        ({"acceptance_rule": "cactus:delta=-1"}, {}, "delta must be in"),
        ({"acceptance_rule": 1}, {}, "must be a string"),
        ({"budget": 1}, {}, "without acceptance_rule"),
        ({"acceptance_rule": "cactus:delta=1"}, {"speculative_config": None}, "without --speculative-config"),
    ],
)
def test_bad_ones_do_not(asked: dict, config: dict, said: str) -> None:
    seen: list = []
    with pytest.raises(VLLMValidationError, match=said) as refusal:
        check_of(seen, **config)(SimpleNamespace(extra_args=asked))
    assert refusal.value.parameter == "acceptance_rule"
    assert not seen


@pytest.mark.parametrize(
    ("words", "said"),
    [(None, "needs a tokenizer"), ((" a", "b"), "matches none of the 2 tokens"), (("1", " 2"), "matches all 2 tokens")],
)
def test_what_the_vocabulary_does_not_allow_is_refused(words, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = None if words is None else Vocabulary(words)
    monkeypatch.setattr(frontend, "vocabulary_of", lambda vllm_config: vocabulary)
    check, protected = check_of(seen := []), {"acceptance_rule": "cactus:delta=1", "protect": "digits"}
    with pytest.raises(VLLMValidationError, match=said):
        check(SimpleNamespace(extra_args=protected))
    assert not seen
    with pytest.raises(ValueError, match=said):
        check_of([], additional_config=protected)
    with pytest.raises(ValueError, match=said):  # for rules that requests bring
        check_of([], additional_config=protected | {"acceptance_rule": "lossless"})
    monkeypatch.setattr(frontend, "vocabulary_of", lambda vllm_config: Vocabulary(("a", " 2")))
    check_of(seen)(SimpleNamespace(extra_args=protected))
    assert len(seen) == 1


def test_a_server_s_own_bad_values_end_its_start() -> None:
    with pytest.raises(ValueError, match="does not work in vLLM"):
        check_of([], additional_config={"acceptance_rule": "typical"})
