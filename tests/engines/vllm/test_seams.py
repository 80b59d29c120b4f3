"""What the plug-in relies on in vLLM, compared between its versions without running any of them."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from cactus_decoding.engines.vllm import reports, v1, v2
from cactus_decoding.engines.vllm.patches import (
    RECORDED,
    V1_SAMPLER,
    V2_SAMPLER,
    arguments,
    definition,
    differences,
)
from cactus_decoding.engines.vllm.plugin import check_version

FLY = ("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k")


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


def test_versions_differ_in_what_fly_takes_and_in_nothing_else(tmp_path: Path) -> None:
    found = differences(written(tmp_path, "0.33"), "0.32")
    assert [one.partition(" ")[0] for one in found] == [V1_SAMPLER, V2_SAMPLER]
    for place in (V1_SAMPLER, V2_SAMPLER):
        assert RECORDED["0.33"][place] == (*RECORDED["0.32"][place], *FLY)


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
        check_version("0.34.0", any_version=True, package=package)
    source = (package / path).read_text()
    assert before in source
    (package / path).write_text(source.replace(before, after))
    for any_version in (False, True):
        expected = rf"^vLLM 0\.34\.0 .* does not pass the check: .*{path.rpartition('/')[2]}.*{said}.*; install one"
        with pytest.raises(RuntimeError, match=expected) as refused:
            check_version("0.34.0", any_version=any_version, package=package)
    assert "pip install 'vllm>=0.32,<0.34'" in str(refused.value)
    (package / path).unlink()
    with pytest.raises(RuntimeError, match="is not there"):
        check_version("0.34.0", any_version=True, package=package)


@pytest.mark.parametrize("version", RECORDED)
def test_our_wrappers_take_what_vllm_s_functions_take(version: str) -> None:
    for module, name, place in (
        (v1, "rejection_sample", V1_SAMPLER),
        (v2, "rejection_sample", V2_SAMPLER),
        (reports, "update_from_output", "v1/core/sched/scheduler.py::Scheduler.update_from_output"),
        (reports, "add_request", "v1/core/sched/scheduler.py::Scheduler.add_request"),
        (reports, "process_outputs", "v1/engine/output_processor.py::OutputProcessor.process_outputs"),
    ):
        ours = arguments(definition(ast.parse(Path(module.__file__).read_text()), [name]))
        theirs = RECORDED[version][place]
        if theirs[0] == "self":  # it is known by another name here
            ours, theirs = ours[1:], theirs[1:]
        assert ours
        assert ours == theirs[: len(ours)], place
