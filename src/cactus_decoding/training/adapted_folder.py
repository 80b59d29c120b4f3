"""What a draft keeps that is trained while it serves: responses to learn from, and its folder."""

from __future__ import annotations

import math
import os
import random
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from cactus_decoding import zoo
from cactus_decoding.arguments.checks import check_integer, check_number
from cactus_decoding.arguments.later import Tensor
from cactus_decoding.files.jsonl import read_json
from cactus_decoding.files.writing import as_json, check_folder, lock, part_of, write_atomically
from cactus_decoding.training.acceptance.data import TokenSequence
from cactus_decoding.training.acceptance.saving import naming


class Text(NamedTuple):
    """A response to learn from, with the target's likeliest tokens at each of its own, ``[response, top]``."""

    sequence: TokenSequence
    top_ids: Tensor
    top_log_probs: Tensor

    def cut(self, positions: int) -> Text:
        """Return a text of at most so many tokens, 2 or more.

        Left out are the response's end, down to half of the positions, and then the prompt's beginning: the rows that
        are learned were computed after all that stands before them.

        Example:
            >>> import torch
            >>> Text(TokenSequence([1, 2, 3, 4, 5, 6], 3), torch.ones(3, 1), torch.ones(3, 1)).cut(4).sequence
            TokenSequence(token_ids=[2, 3, 4, 5], prompt_length=2)
        """
        (token_ids, prompt), ids, log_probs = self
        kept = min(len(token_ids) - prompt, max(positions - prompt, positions // 2))
        start = max(prompt + kept - positions, 0)
        return Text(TokenSequence(token_ids[start : prompt + kept], prompt - start), ids[:kept], log_probs[:kept])


class Replay:
    """The latest responses.

    A step sees at most ``batch`` of the ``size`` texts that are remembered, with at most ``positions`` rows, padding
    included: texts times the longest one's tokens.
    """

    def __init__(self, size: int, batch: int, positions: int, seed: int) -> None:
        self.texts: deque[Text] = deque(maxlen=size)
        self._batch, self._positions, self._random = batch, positions, random.Random(seed)

    def add(self, text: Text, window: int | None) -> None:
        """Remember a text, cut where it alone has more positions than there is room for, or the draft's window has."""
        self.texts.append(text.cut(self._positions if window is None else min(self._positions, window)))

    def choose(self, tokens: float | None) -> list[Text]:
        """Return the latest text and others drawn from the earlier ones: as many as have so many tokens, and room.

        None stands for a number that nobody knows: the latest one alone.
        """
        earlier = list(self.texts)[:-1]
        order = [self.texts[-1], *self._random.sample(earlier, min(len(earlier), self._batch - 1))]
        if tokens is None:
            return order[:1]
        chosen: list[Text] = []
        longest = 0
        for each in order:
            length = len(each.sequence.token_ids)
            tokens, longest = tokens - length, max(longest, length)
            if tokens < 0 or (len(chosen) + 1) * longest > self._positions:
                break
            chosen.append(each)
        return chosen


_RECORD, _LOCK, _SAVING = "adaptation.json", "adaptation.lock", ".saving"


@dataclass(frozen=True)
class Record:
    """What all processes that adapted a draft have done, ``draft`` being what the folder began as a copy of.

    Times are seconds: of steps and their savings, of responses, of the last saving, and per token of the last steps.
    """

    draft: str
    steps: int = 0
    seconds: float = 0.0
    response_seconds: float = 0.0
    saving_seconds: float = 0.0
    seconds_per_token: Sequence[float] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.draft, str) or not isinstance(self.seconds_per_token, (list, tuple)):
            raise TypeError("draft must be a text, and seconds_per_token a list")
        check_integer("steps", self.steps, 0)
        for name in ("seconds", "response_seconds", "saving_seconds"):
            check_number(name, getattr(self, name), 0, math.inf, high_open=True)
        for each in self.seconds_per_token:
            check_number("seconds_per_token", each, 0, math.inf, low_open=True, high_open=True)

    @classmethod
    def read(cls, file: Path) -> Record:
        """Return what a file says; raise `ValueError` where that is no record."""
        try:
            return cls(**read_json(file))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{str(file)!r} is no record of an adaptation: {error}") from None


class AdaptedFolder:
    """Holds a folder for this process alone, until it is closed or no longer referred to.

    A folder that is new grows beside its place, and is there once it is whole.

    ``draft`` is what it begins as a copy of, None for whatever it began as; ``record`` is of what was done before, None
    of a folder that is new.
    """

    def __init__(self, path: str | Path, draft: str | None = None) -> None:
        check_folder(Path(path))
        self.path = Path(os.path.realpath(path))
        self._part = part_of(self.path)
        begun = self._has_begun()
        held = self.path if begun else self._part
        self._made = [] if begun else [each for each in (held, *held.parents) if not each.exists()]
        held.mkdir(parents=True, exist_ok=True)
        opened = os.open(held / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        self._release = weakref.finalize(self, os.close, opened)
        try:
            lock(opened, self.path)
            if self._has_begun() != begun:  # by a process that has ended in the meantime
                raise ValueError(f"another process has written {str(self.path)!r}; try again")
            self.record = Record.read(self.path / _RECORD) if begun else None
            if self.record is not None and draft not in (None, self.record.draft):
                raise ValueError(
                    f"the draft in {str(self.path)!r} began as a copy of {self.record.draft!r}, and not of {draft!r}: "
                    "leave the draft out, or give another folder"
                )
        except BaseException:
            self._release()
            raise

    def _has_begun(self) -> bool:
        if (self.path / _RECORD).is_file():
            return True
        if self.path.exists() and any(self.path.iterdir()):
            model = (self.path / "config.json").exists()
            why = "holds a model that is no adapting one, and stays as it is" if model else "is not empty"
            what = "; give that model as the draft, and a new folder" if model else "; give a new folder"
            raise ValueError(f"cannot adapt in {str(self.path)!r}: it {why}{what}")
        return False

    def begin(self, model: PreTrainedModel, tokenizer: Any, draft: str) -> None:
        """Make the folder, as a copy of a draft; raise `OSError` where it cannot be written."""
        for each in self._part.iterdir():  # what a killed process has left
            if each.is_dir():
                rmtree(each)
            elif each.name != _LOCK:
                each.unlink()
        began = time.perf_counter()
        with naming(self.path):
            model.save_pretrained(self._part, max_shard_size="1TB")
            record = Record(draft, saving_seconds=time.perf_counter() - began)
            tokenizer.save_pretrained(self._part)
            (self._part / _RECORD).write_text(as_json(asdict(record), indent=1) + "\n", encoding="utf-8")
            os.rename(self._part, self.path)
        self.record = record

    def stage(self, model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
        """Write weights where `commit` finds them; the model is the one whose names they have."""
        unfinished = self.path / _SAVING
        rmtree(unfinished, ignore_errors=True)
        with naming(self.path):
            model.save_pretrained(unfinished, state_dict=dict(weights), max_shard_size="1TB")

    def commit(self, record: Record, *, staged: bool) -> None:
        """Replace the record, and then the weights where some were staged: a kill between forgets no time."""
        with naming(self.path):
            write_atomically(self.path / _RECORD, as_json(asdict(record), indent=1) + "\n")
            if staged:
                os.replace(self.path / _SAVING / SAFE_WEIGHTS_NAME, self.path / SAFE_WEIGHTS_NAME)
        self.record = record
        if staged:
            rmtree(self.path / _SAVING, ignore_errors=True)

    def close(self) -> None:
        """Leave the folder to other processes; one that has not begun leaves nothing."""
        if not self._release.alive:
            return
        if self.record is None:
            rmtree(self._part, ignore_errors=True)
            for each in self._made[1:]:
                with suppress(OSError):  # somebody else has written there
                    each.rmdir()
        self._release()


def name_of(draft: str | Path) -> str:
    """Return the name by which a draft is remembered: in full, and of a folder without links.

    >>> name_of("bundled"), name_of("owner/name")
    ('bundled:worded', 'owner/name')
    """
    full = str(draft) if isinstance(draft, Path) else zoo.full_name(draft)
    return os.path.realpath(full) if zoo.draft_path(full) is None and os.path.exists(full) else full
