"""Settings of the whole test suite."""

from __future__ import annotations

from hypothesis import settings

# The same examples on every run, and no limit on time: a loaded machine must not make a test fail.
settings.register_profile("deterministic", derandomize=True, deadline=None)
settings.load_profile("deterministic")
