"""Wheel and sdist of every distribution are built, say what an index wants to know, and run away from the checkout."""

from __future__ import annotations

import json
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts.distributions import (
    FIRST_ANSWER,
    PAGE,
    PROJECTS,
    RESULTS,
    ROOT,
    build,
    check_metadata,
    environment,
    install,
    run,
    tables,
)
from scripts.pages import insert

RUNS = {"cactus-decoding": FIRST_ANSWER, "cactus-conform": ("cactus-conform", "--self-test")}
"""Of each distribution a command that needs nothing but what it is installed with."""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("built")
    return [path for project in PROJECTS for path in build(project, folder)]


@pytest.fixture(scope="module")
def scripts(built, tmp_path_factory) -> Path:
    """Return the commands of an environment with the wheels, which sees the packages that tests run with."""
    folder = tmp_path_factory.mktemp("environment")
    made = environment(folder, sysconfig.get_path("purelib"))
    # what is visible is also installed under these names, as a checkout
    wheels = [str(path) for path in built if path.suffix == ".whl"]
    install(made, "--no-index", "--no-deps", "--force-reinstall", *wheels)
    return made


def names() -> list[str]:
    return [tomllib.loads((project / "pyproject.toml").read_text())["project"]["name"] for project in PROJECTS]


def test_the_tables_of_the_page_are_those_of_the_result_file():
    page = PAGE.read_text()
    assert insert(page, "installed", tables(json.loads(RESULTS.read_text()))) == page


def test_every_distribution_has_a_command_that_is_run():
    assert sorted(RUNS) == sorted(names())


@pytest.mark.slow
def test_an_index_would_take_the_metadata(built):
    assert len(built) == 2 * len(PROJECTS)
    check_metadata(built)


@pytest.mark.slow
def test_wheels_hold_their_package_and_nothing_else(built):
    for wheel in (path for path in built if path.suffix == ".whl"):
        with zipfile.ZipFile(wheel) as opened:
            folders = {name.partition("/")[0] for name in opened.namelist()}
            package = wheel.name.partition("-")[0]
            assert folders == {package, next(name for name in folders if name.endswith(".dist-info"))}
            assert f"{package}/py.typed" in opened.namelist()
            assert not [name for name in opened.namelist() if "__pycache__" in name or "tests/" in name]


@pytest.mark.slow
def test_the_sdist_of_the_root_leaves_other_distributions_out(built):
    with tarfile.open(
        next(path for path in built if path.name.startswith("cactus_decoding") and path.suffix == ".gz")
    ) as opened:
        folders = {name.split("/")[1] for name in opened.getnames()}
    assert {"src", "tests", "LICENSE", "README.md"} <= folders
    assert not {"packages", "build", ".venv", ".git"} & folders


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_wheel_runs_where_nothing_else_of_the_checkout_is(name, scripts, tmp_path):
    package = name.replace("-", "_")
    code = f"import sys, {package}; print({package}.__file__); print(*sys.path, sep='\\n')"
    found, *path = run(scripts, "python", "-c", code, folder=tmp_path).splitlines()
    assert Path(found).is_relative_to(scripts.parent)
    assert not [each for each in path if Path(each) in (ROOT, ROOT / "src", tmp_path)]
    assert run(scripts, *RUNS[name], folder=tmp_path)
