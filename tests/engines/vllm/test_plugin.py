"""Which versions of vLLM the plug-in works with."""

from __future__ import annotations

import pytest

from cactus_decoding.engines.vllm.plugin import check_version


@pytest.mark.parametrize("version", ["0.31.0", "0.3", "0.34.0rc1", "0.330", "1.0", "dev"])
def test_an_unknown_version_is_refused(version: str) -> None:
    with pytest.raises(RuntimeError, match=f"{version} is installed"):
        check_version(version)
    check_version(version, any_version=True)


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc1", "0.32.0+cpu", "0.33.0", "0.33.1.dev2"])
def test_a_known_one_is_not(version: str) -> None:
    check_version(version)
