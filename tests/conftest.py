"""Settings of the whole test suite."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from support.pass_times import PASS_TIMES
from transformers.utils import logging

from cactus_decoding.cli import main
from cactus_decoding.core.drafting.timing import PassTimes

# The same examples on every run, and no limit on time: a loaded machine must not make a test fail.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")

# Tests that are started in the background may be told to ignore Ctrl-C, and so would the processes they interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _same_pass_times(tmp_path_factory):
    """Have proposals chosen by the same pass times on every machine, and keep none in the user's cache."""
    times = PassTimes.read(PASS_TIMES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr("cactus_decoding.core.drafting.measuring.measure_passes", lambda *models, **_: times)
        yield


@pytest.fixture
def settings_of_the_libraries(monkeypatch):
    """Take back what commands set for their process, and show 120 columns without colours."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "CACTUS_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    yield
    torch.set_num_threads(threads)
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def gguf(tmp_path_factory) -> Callable[..., Path]:
    """Return a function from a bundled model's name, and a type of weights, to its GGUF file."""
    from scripts.bundled_gguf import write_bundled

    folder, written = tmp_path_factory.mktemp("gguf"), dict[tuple[str, str], Path]()

    def path(name: str, kind: str = "float32") -> Path:
        if (name, kind) not in written:
            written[name, kind] = write_bundled(name, folder, kind)
        return written[name, kind]

    return path


@pytest.fixture(scope="module")
def browser():
    """A headless browser; for a module and no longer, because Playwright keeps an event loop running."""
    from support.browser import headless_browser

    with headless_browser() as started:
        yield started


@pytest.fixture
def run(capsys, settings_of_the_libraries):
    """Call the command line in this process: exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def succeed(run):
    """Call the command line, which must succeed: stdout and stderr."""

    def call(*arguments: str) -> tuple[str, str]:
        code, out, err = run(*arguments)
        assert code == 0, err
        return out, err

    return call


@pytest.fixture
def refused(run):
    """Call the command line, which must refuse what it is asked for: its whole sentence, the last line of stderr."""

    def call(*arguments: str) -> str:
        code, _, err = run(*arguments)
        last = err.splitlines()[-1]
        assert (code, last.startswith("cactus: "), "Traceback" in err) == (2, True, False), err
        return last

    return call
