"""Where vLLM meets the plug-in: which versions, which functions are replaced, the front end, evaluations offline."""

import ast
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from support.code_blocks import ROOT
from support.tables import all_of

from cactus_decoding import Metrics
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.engines.vllm import drafting, plugin, reports, v1, v2
from cactus_decoding.engines.vllm.offline import StepCounts, keep_stdout_clean, parse_engine_arguments
from cactus_decoding.engines.vllm.patches import (
    RECORDED,
    V1_SAMPLER,
    V2_SAMPLER,
    argument_names,
    definition,
    differences,
    is_replaced,
    replace,
    stock_of,
)
from cactus_decoding.engines.vllm.plugin import check_vllm_version, with_check


class VLLMValidationError(ValueError):
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
    standard = SimpleNamespace(rejection_sample_method="standard", num_speculative_tokens=4)
    given = {"speculative_config": standard, "additional_config": {}} | config
    return with_check(lambda processor: seen.append)(SimpleNamespace(vllm_config=SimpleNamespace(**given)))


def test_it_is_light_to_import() -> None:
    code = "import sys; from cactus_decoding.engines.vllm import plugin; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "tokenizers", "typer", "vllm"} & set(loaded)


def test_good_values_go_on_to_the_stock_check() -> None:
    seen: list = []
    good = [
        SimpleNamespace(temperature=1.0, extra_args=one)
        for one in (None, {"other": 1}, {"acceptance_rule": "cactus:delta=1"})
    ]
    for params in good:
        check_of(seen)(params)
    assert seen == good


@all_of(
    "asked, config, said",
    [
        ({"acceptance_rule": "cactus:delta=-1"}, {}, "delta must be in"),
        ({"acceptance_rule": "cactus:delta=1"}, {"speculative_config": None}, "without --speculative-config"),
    ],
)
def test_bad_ones_do_not(asked: dict, config: dict, said: str) -> None:
    seen: list = []
    with pytest.raises(VLLMValidationError, match=said) as refusal:
        check_of(seen, **config)(SimpleNamespace(temperature=1.0, extra_args=asked))
    assert refusal.value.parameter == "acceptance_rule"
    assert not seen


@all_of(
    "temperature, asked, said",
    [
        (1.0, {"acceptance_rule": "mars:ratio=0.9"}, "mars is a rule for temperature 0 .*; set the temperature to 0"),
        (
            0.01,
            {"acceptance_rule": "relaxed_greedy:margin=1", "budget": 1},
            "relaxed_greedy is a rule for temperature 0",
        ),
        (0.0, {"acceptance_rule": "big_little:rollback=-1"}, "rollback must be"),
    ],
)
def test_rules_for_temperature_0_are_for_temperature_0(temperature: float, asked: dict, said: str) -> None:
    seen: list = []
    with pytest.raises(VLLMValidationError, match=said):
        check_of(seen)(SimpleNamespace(temperature=temperature, extra_args=asked))
    assert not seen
    good = [
        SimpleNamespace(temperature=0.0, extra_args={"acceptance_rule": rule, "budget": 0.5})
        for rule in ("mars:ratio=0.9,logits=raw", "cactus:delta=1", "lossless")  # cactus keeps the likeliest token only
    ]
    for params in good:
        check_of(seen)(params)
    assert seen == good


@all_of(
    "words, said",
    [(None, "needs a tokenizer"), ((" a", "b"), "matches none of the 2 tokens"), (("1", " 2"), "matches all 2 tokens")],
)
def test_what_the_vocabulary_does_not_allow_is_refused(monkeypatch, words, said: str) -> None:
    vocabulary = None if words is None else Vocabulary(words)
    monkeypatch.setattr(plugin, "server_vocabulary", lambda vllm_config: vocabulary)
    check, protected = check_of(seen := []), {"acceptance_rule": "cactus:delta=1", "protect": "digits"}
    with pytest.raises(VLLMValidationError, match=said):
        check(SimpleNamespace(temperature=1.0, extra_args=protected))
    assert not seen
    with pytest.raises(ValueError, match=said):
        check_of([], additional_config=protected)
    with pytest.raises(ValueError, match=said):  # for rules that requests bring
        check_of([], additional_config=protected | {"acceptance_rule": "lossless"})
    monkeypatch.setattr(plugin, "server_vocabulary", lambda vllm_config: Vocabulary(("a", " 2")))
    check_of(seen)(SimpleNamespace(temperature=1.0, extra_args=protected))
    assert len(seen) == 1


def test_engine_arguments_are_a_json_object() -> None:
    assert parse_engine_arguments(None) == {}
    assert parse_engine_arguments('{"dtype": "float32"}') == {"dtype": "float32"}
    for text, said in (
        ("{", "is no JSON"),
        ("[1]", "must be a JSON object"),
        ('{"model": "x", "max_num_seqs": 2}', "may not hold max_num_seqs, model"),
    ):
        with pytest.raises(ValueError, match=said):
            parse_engine_arguments(text)


def test_steps_are_counted_once_they_bring_forth_tokens() -> None:
    counts = StepCounts()

    def record(drafted: int | None, accepted: int, generated: int) -> None:
        drafts = None if drafted is None else SimpleNamespace(num_draft_tokens=drafted, num_accepted_tokens=accepted)
        counts.record(SimpleNamespace(spec_decoding_stats=drafts), SimpleNamespace(num_generation_tokens=generated))

    counts.record(None, None)
    record(None, 0, 0)  # part of a prompt
    record(None, 0, 1)  # the rest of it
    record(4, 4, 5)
    record(4, 1, 2)
    assert counts.take() == Metrics(steps=3, drafted=8, accepted=5, recovered=1, bonus=2)
    assert counts.take() == Metrics()


def test_a_user_s_own_log_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_LOGGING_STREAM", "")  # so that it is put back afterwards
    del os.environ["VLLM_LOGGING_STREAM"]
    keep_stdout_clean()
    assert (os.environ["VLLM_LOGGING_LEVEL"], os.environ["VLLM_LOGGING_STREAM"]) == ("DEBUG", "ext://sys.stderr")


@all_of("version", ["0.31.0", "0.3", "0.34.0rc1", "0.330", "1.0", "dev"])
def test_an_unknown_version_is_refused_with_what_to_install_and_let_through_with_a_warning(version: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        check_vllm_version(version)
    assert str(refused.value) == (
        f"vLLM {version} is not one of the versions that were tried (0.32, 0.33); it has the names and signatures of "
        "0.33, but its numbers can be checked by running it only: set CACTUS_VLLM_ANY_VERSION=1 to use it all the "
        "same, or install one that was: pip install 'vllm>=0.32,<0.34'; or set VLLM_PLUGINS='' to run vLLM without "
        "plug-ins"
    )
    with pytest.warns(UserWarning, match=rf"^vLLM {version} is not one of .* numbers were not compared$"):
        check_vllm_version(version, any_version=True)


def test_versions_that_were_tried_are_those_of_the_range() -> None:
    assert '"vllm>=0.32,<0.34"' in (ROOT / "pyproject.toml").read_text()
    assert [*RECORDED] == ["0.32", "0.33"]
    for version in ("0.32.0", "0.32.1rc1", "0.32.0+cpu", "0.33.0", "0.33.1.dev2"):
        check_vllm_version(version)


def test_a_function_is_replaced_wherever_vllm_has_imported_it_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> int:
        """Give it."""
        return 6

    modules = {name: ModuleType(name) for name in ("vllm.owner", "vllm.user", "vllm.other", "others.user")}
    for name, module in modules.items():
        module.answer = answer
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm.other"].answer = other = lambda: 5
    replace(modules["vllm.owner"], "answer", lambda stock: lambda: stock() + 1)
    replaced = modules["vllm.owner"].answer
    assert (replaced(), replaced.__doc__, stock_of(modules["vllm.owner"], "answer")) == (7, "Give it.", answer)
    assert modules["vllm.user"].answer is replaced
    assert modules["vllm.other"].answer is other
    assert modules["others.user"].answer is answer
    replace(modules["vllm.owner"], "answer", lambda stock: lambda: 0)  # once only
    assert modules["vllm.owner"].answer is replaced
    assert [is_replaced(module, "answer") for module in modules.values()] == [True, True, False, False]


def written(folder: Path, version: str) -> Path:
    """Return a package whose sources have what was recorded of a version, and nothing else."""
    lines: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for place, names in RECORDED[version].items():
        path, _, name = place.partition("::")
        owner, _, function = name.rpartition(".")
        if isinstance(names, frozenset):
            lines[path][name] += [f"    {attribute}: int" for attribute in sorted(names)]
        elif owner:
            lines[path][owner].append(f"    def {function}({', '.join(names)}): ...")
        else:
            lines[path][""].append(f"def {function}({', '.join(names)}): ...")
    for path, classes in lines.items():
        parts = [f"class {name}:\n" * bool(name) + "\n".join(body) for name, body in classes.items()]
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("\n".join(parts) + "\n")
    return folder


@pytest.mark.parametrize("version", RECORDED)
def test_a_version_is_as_it_was_recorded(version: str, tmp_path: Path) -> None:
    assert differences(written(tmp_path, version), version) == []


@pytest.mark.parametrize(
    ("place", "before", "after", "said"),
    [
        (V1_SAMPLER, "draft_probs, target_logits", "target_logits, draft_probs", "takes"),
        (V2_SAMPLER, "expanded_local_pos, ", "", "takes"),
        (V2_SAMPLER, "def rejection_sample", "def sample_rejected", "is not there"),
        ("v1/engine/__init__.py::EngineCoreOutput", "kv_transfer_params", "transfer_params", "has no kv_transfer"),
    ],
)
def test_a_third_version_fails_loudly(place: str, before: str, after: str, said: str, tmp_path: Path) -> None:
    package, path = written(tmp_path, "0.33"), place.partition("::")[0]
    with pytest.warns(UserWarning, match=r"^vLLM 0\.34\.0 is not one of"):
        check_vllm_version("0.34.0", any_version=True, package=package)
    source = (package / path).read_text()
    assert before in source
    (package / path).write_text(source.replace(before, after))
    for any_version in (False, True):
        expected = rf"^vLLM 0\.34\.0 .* does not pass the check: .*{path.rpartition('/')[2]}.*{said}.*; install one"
        with pytest.raises(RuntimeError, match=expected) as refused:
            check_vllm_version("0.34.0", any_version=any_version, package=package)
    assert "pip install 'vllm>=0.32,<0.34'" in str(refused.value)
    (package / path).unlink()
    with pytest.raises(RuntimeError, match="is not there"):
        check_vllm_version("0.34.0", any_version=True, package=package)


@pytest.mark.parametrize("version", RECORDED)
def test_our_wrappers_take_what_vllm_s_functions_take(version: str) -> None:
    for module, name, place in (
        (v1, "rejection_sample", V1_SAMPLER),
        (v2, "rejection_sample", V2_SAMPLER),
        (drafting, "propose_draft_token_ids", "v1/worker/gpu_model_runner.py::GPUModelRunner.propose_draft_token_ids"),
        (reports, "update_from_output", "v1/core/sched/scheduler.py::Scheduler.update_from_output"),
        (reports, "add_request", "v1/core/sched/scheduler.py::Scheduler.add_request"),
        (reports, "process_outputs", "v1/engine/output_processor.py::OutputProcessor.process_outputs"),
    ):
        ours = argument_names(definition(ast.parse(Path(module.__file__).read_text()), [name]))
        theirs = RECORDED[version][place]
        if theirs[0] == "self":  # it is known by another name here
            ours, theirs = ours[1:], theirs[1:]
        assert ours
        assert ours == theirs[: len(ours)], place
