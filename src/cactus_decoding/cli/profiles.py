"""``--profile``: what `cactus tune` found to be fastest here, for commands that answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from cactus_decoding.cli.options import RUNNING, option

ProfileFile = Annotated[Path | None, option(
    "Target, draft, proposals per step and threads by what 'cactus tune' wrote here; options that are given win. It "
    "must be of this machine and of these files.", "FILE", RUNNING, flag="--profile", shown="none",
)]  # fmt: skip


class Chosen(NamedTuple):
    target: str | None
    draft: str | None
    proposals: str | None
    threads: int | None


def with_profile(path: Path | None, given: Chosen) -> Chosen:
    """Fill in from a profile what is not given; raise `ValueError` for a profile of other models."""
    if path is None:
        return given
    from cactus_decoding.lab.tuning.profile import Profile

    profile = Profile.read(path)
    for name, own, tuned in (("target", given.target, profile.target), ("--draft", given.draft, profile.draft)):
        if own is not None and _file(own) != _file(tuned):
            raise ValueError(f"the profile {str(path)!r} has {name} {tuned!r}, but {own!r} is given: leave one out")
    return Chosen(
        given.target or profile.target,
        given.draft or profile.draft,
        str(profile.num_speculative_tokens) if given.proposals is None else given.proposals,
        given.threads or profile.threads,
    )


def _file(name: str) -> str:
    """Return a model's name without settings, and as a whole path if it is a file."""
    from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf

    file = parse_gguf(name)
    path = Path(name) if file is None else file.path
    return str(path.resolve()) if path.exists() else name
