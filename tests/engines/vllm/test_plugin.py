"""Which versions of vLLM the plug-in works with."""

from __future__ import annotations

import pytest
from support.code_blocks import ROOT

from cactus_decoding.engines.vllm.patches import RECORDED
from cactus_decoding.engines.vllm.plugin import check_version


@pytest.mark.parametrize("version", ["0.31.0", "0.3", "0.34.0rc1", "0.330", "1.0", "dev"])
def test_an_unknown_version_is_refused_with_what_to_install_and_let_through_with_a_warning(version: str) -> None:
    with pytest.raises(RuntimeError) as refused:
        check_version(version)
    assert str(refused.value) == (
        f"vLLM {version} is not one of the versions that were tried (0.32, 0.33); it has the names and signatures of "
        "0.33, but its numbers can be checked by running it only: set CACTUS_VLLM_ANY_VERSION=1 to use it all the "
        "same, or install one that was: pip install 'vllm>=0.32,<0.34'; or set VLLM_PLUGINS='' to run vLLM without "
        "plug-ins"
    )
    with pytest.warns(UserWarning, match=rf"^vLLM {version} is not one of .* numbers were not compared$"):
        check_version(version, any_version=True)


def test_the_range_is_that_of_the_versions_that_were_tried() -> None:
    dependencies = (ROOT / "pyproject.toml").read_text()
    assert '"vllm>=0.32,<0.34"' in dependencies
    assert [*RECORDED] == ["0.32", "0.33"]


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc1", "0.32.0+cpu", "0.33.0", "0.33.1.dev2"])
def test_a_known_one_is_not(version: str) -> None:
    check_version(version)
