"""Trains a draft while it serves: a step after a response, on probabilities that verification has computed anyway."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

from cactus_decoding import zoo
from cactus_decoding.core.checks import check_integer, check_number
from cactus_decoding.core.files.jsonl import read_as, read_json
from cactus_decoding.core.files.writing import as_json, check_folder, write_atomically
from cactus_decoding.core.generate import Response
from cactus_decoding.core.models.loading import load_tokenizer, only_cached
from cactus_decoding.core.pair import Pair, load_pair
from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.transformers.cached_model import vocabulary_size
from cactus_decoding.lab.training.acceptance.data import IGNORED, TokenSequence, collate
from cactus_decoding.lab.training.acceptance.losses import parse_loss
from cactus_decoding.lab.training.acceptance.material import draft_model
from cactus_decoding.lab.training.acceptance.row_cache import coarse, likeliest
from cactus_decoding.lab.training.acceptance.saving import naming

_RECORD = "adaptation.json"
_SAVE_SECONDS = 60.0  # between savings while responses go on


class ServedText(NamedTuple):
    """A response to learn from, with the target's likeliest tokens at each position, ``[response, top]``."""

    sequence: TokenSequence
    top_ids: Tensor
    top_log_probs: Tensor

    def cut(self, positions: int) -> ServedText:
        """Return a text of at most so many positions, 2 or more.

        The response loses its end, down to half of the positions, and then the prompt its beginning.
        """
        (token_ids, prompt), ids, log_probs = self
        kept = min(len(token_ids) - prompt, max(positions - prompt, positions // 2))
        start = max(prompt + kept - positions, 0)
        return ServedText(TokenSequence(token_ids[start : prompt + kept], prompt - start), ids[:kept], log_probs[:kept])


class _Record(NamedTuple):
    """What all processes have done to the draft in a folder, which began as a copy of ``draft``."""

    draft: str
    steps: Annotated[int, Field(ge=0)] = 0
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    response_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0


class DraftAdaptation:
    """Trains a pair's draft between responses, so that it follows what the pair is used for.

    After a response the draft reads it once more and takes one step of AdamW on a loss of its probabilities and the
    target's, which verification had computed. Every token of a response counts: whatever was accepted, the target's
    probabilities there are known. They are those at temperature 1, and only the likeliest tokens are kept (`RowCache`).

    The draft changes between responses, never within one: each proposal is drawn from the probabilities that it is
    judged by. So every statement about the distribution of a response holds whatever was learned before it, as long as
    its random numbers are fresh: with one seed for all, the draft learns from the numbers that it is judged by. What a
    seed gives does change with the draft, except at temperature 0.

    Args:
        pair: the models; nothing else may use the draft meanwhile. Its draft is put into float32: in 16 bits most steps
            are too small to change a weight.
        loss: its spelling; see `parse_loss`.
        learning_rate: of AdamW.
        max_time_share: the share of the responses' time that steps and saving may take. A step is taken where less was
            used so far, so that later responses make up for a step that takes too long.
        max_row_bytes: of a step's logits in float32, ``4 * tokens * vocabulary``; gradients included, they take some
            eight times as much. A longer text is cut.

    Attributes:
        steps: how many were taken, with those of earlier processes that adapted the folder, as in what follows.
        seconds: that steps and saving took.
        response_seconds: that responses took.

    Raises `ValueError` for a draft that is no model of transformers or has no weights of its own, or a setting out of
    range.

    Sources: Online speculative decoding (Liu et al., arXiv 2310.07177); OmniDraft (arXiv 2507.02659).

    Example:
        >>> from cactus_decoding import load_pair, stream
        >>> from cactus_decoding.zoo.word_problems import EXAMPLES
        >>> adaptation = DraftAdaptation(load_pair(), max_time_share=1.0)
        >>> for outcome in adaptation.watch(stream(adaptation.pair, EXAMPLES[0].prompt, seed=0)):
        ...     pass
        >>> adaptation.steps
        1
    """

    folder: Path | None  # where weights are saved; None for nowhere. See `load`

    def __init__(
        self,
        pair: Pair,
        *,
        loss: str = "lk",
        learning_rate: float = 1e-4,
        max_time_share: float = 0.1,
        max_row_bytes: int = 2**29,
    ) -> None:
        self._model = draft_model(pair)
        check_number("learning_rate", learning_rate, 0, 1, low_open=True)
        check_number("max_time_share", max_time_share, 0, 1)
        check_integer("max_row_bytes", max_row_bytes, 1)
        self.pair, self.folder = pair, None
        self._loss, self._share = parse_loss(loss), max_time_share
        self._positions = max(max_row_bytes // (4 * vocabulary_size(self._model)), 2)
        if (window := pair.drafter.max_length) is not None:
            self._positions = min(self._positions, window)
        self._record = _Record("")
        _, self.steps, self.seconds, self.response_seconds = self._record
        self._saved, self._changed = time.monotonic(), False
        pair.drafter.reset()
        self._parameters = [each.requires_grad_() for each in self._model.float().parameters()]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=learning_rate, weight_decay=0.0)

    @classmethod
    def load(
        cls, folder: str | Path, target: str | None = None, draft: str | Path | None = None, **settings: Any
    ) -> Self:
        """Return the adaptation of the draft in a folder, which begins as a copy of ``draft`` where it is new or empty.

        The folder is a Hugging Face model in float32, with a record of the time that was spent on it beside the
        weights; the optimizer's moments are lost. As a context manager, the adaptation saves at the end. Of two
        processes at once, the one that saves last wins. Target and draft are as in `load_pair`; ``draft`` may be None
        for a folder that was begun before.

        Raises `OSError` for a folder that cannot be written; `ValueError` for one that holds something else or began as
        another draft, for models that cannot be loaded, and for a draft that cannot be trained.
        """
        place = Path(os.path.realpath(folder))
        check_folder(place)
        name = None if draft is None else _name_of(draft)
        if (place / _RECORD).is_file():
            record = read_as(
                _Record, read_json(place / _RECORD), f"{str(place / _RECORD)!r} is no record of an adaptation"
            )
            if name not in (None, record.draft):
                raise ValueError(
                    f"the draft in {str(place)!r} began as a copy of {record.draft!r}, and not of {name!r}: leave the "
                    "draft out, or give another folder"
                )
            adaptation = cls(load_pair(target, place), **settings)
        else:
            if place.exists() and any(place.iterdir()):
                raise ValueError(
                    f"cannot adapt in {str(place)!r}: it is not empty, and stays as it is; give a new folder and, if "
                    "this one holds a model, give that as the draft"
                )
            if draft is None and target not in (None, zoo.BUNDLED):
                raise ValueError(f"a draft is missing for target {target!r}: give the model that is to be trained")
            adaptation = cls(load_pair(target, draft), **settings)
            record = _Record(name or _name_of(zoo.BUNDLED))
            _begin(place, adaptation._model, record)
        adaptation.folder, adaptation._record = place, record
        _, adaptation.steps, adaptation.seconds, adaptation.response_seconds = record
        return adaptation

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.save()

    def watch(self, response: Response) -> Iterator[Outcome]:
        """Take a response's steps, yield their outcomes, and learn from it when it is finished.

        A response that is left before its end is not learned from.
        """
        response.request.check_chain("adapting a draft")
        rows: list[tuple[Tensor, Tensor]] = []
        kept = 0.0
        for outcome in response:
            began = time.perf_counter()
            rows.append(likeliest(outcome.rows.logits[: outcome.num_emitted]))
            kept += time.perf_counter() - began
            yield outcome
        if response.token_ids:
            self.seconds += kept
            prompt = response.prompt_token_ids
            ids, log_probs = (torch.cat(part) for part in zip(*rows, strict=True))
            sequence = TokenSequence([*prompt, *response.token_ids], len(prompt))
            self.learn(ServedText(sequence, ids, log_probs), response.metrics.seconds)

    def learn(self, text: ServedText, seconds: float) -> bool:
        """Take a step on a response that took so many seconds, if there is time; return whether it did."""
        self.response_seconds += seconds
        if self.seconds >= self._share * self.response_seconds:
            return False
        began = time.perf_counter()
        try:
            self._step(text.cut(self._positions))
        finally:
            self.seconds += time.perf_counter() - began
        if time.monotonic() - self._saved >= _SAVE_SECONDS:
            self.save()
        return True

    @torch.enable_grad()
    def _step(self, text: ServedText) -> None:
        """Take one step; a loss that is not finite changes nothing."""
        device = self._parameters[0].device
        batch = {name: values.to(device) for name, values in collate([text.sequence]).items()}
        labels = batch.pop("labels")[:, 1:]
        logits = self._model(**batch, use_cache=False).logits[:, :-1]
        top, size = (text.top_ids.to(device), text.top_log_probs.to(device)), self.pair.target.vocabulary_size
        rows = coarse(*top, size, logits, labels.clamp(min=0), labels != IGNORED)
        loss = self._loss(rows).mean()
        gradients = torch.autograd.grad(loss, self._parameters)
        if not bool(loss.isfinite()) or not all(bool(each.isfinite().all()) for each in gradients):
            return
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self.pair.drafter.reset()  # first, so that wherever this is interrupted nothing cached is of other weights
        self._changed = True
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.steps += 1
        self._parameters[-1].sum().item()  # a GPU has done it all by now

    def summary(self) -> str:
        share = 100 * self.seconds / self.response_seconds if self.response_seconds else 0.0
        now = f" ({self.steps - self._record.steps} of them now)" if self._record.steps else ""
        where = "" if self.folder is None else f"; the draft is in {self.folder}"
        return (
            f"adapted by {self.steps} steps{now} in {self.seconds:.1f} s, savings included: {share:.0f} % of the "
            f"answers' time{where}"
        )

    def save(self) -> None:
        """Write the weights beside the old ones and replace those, and record how much time was spent.

        Raises `OSError` where they cannot be written; what was written before stays.
        """
        if self.folder is None:
            return
        began = time.perf_counter()
        with naming(self.folder), TemporaryDirectory(dir=self.folder, prefix=".saving") as part:
            if self._changed:
                self._model.save_pretrained(part, max_shard_size="1TB")
            self.seconds += time.perf_counter() - began
            record = _Record(self._record.draft, self.steps, self.seconds, self.response_seconds)
            write_atomically(self.folder / _RECORD, as_json(record._asdict()) + "\n")  # first: a kill forgets no time
            if self._changed:
                os.replace(Path(part) / SAFE_WEIGHTS_NAME, self.folder / SAFE_WEIGHTS_NAME)
        self._saved, self._changed = time.monotonic(), False


def _begin(folder: Path, model: PreTrainedModel, record: _Record) -> None:
    """Create a folder of a model and its tokenizer, completely or not at all."""
    source = zoo.draft_path(record.draft) or record.draft
    tokenizer: Any = load_tokenizer("draft", source, local=only_cached("draft", source))
    with naming(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}") as beside:
            part = Path(beside) / folder.name
            model.save_pretrained(part, max_shard_size="1TB")
            tokenizer.save_pretrained(part)
            (part / _RECORD).write_text(as_json(record._asdict()) + "\n", encoding="utf-8")
            os.rename(part, folder)


def _name_of(draft: str | Path) -> str:
    """Return the name by which a draft is remembered: in full, and for a folder without links."""
    full = str(draft) if isinstance(draft, Path) else zoo.full_name(draft)
    return os.path.realpath(full) if zoo.draft_path(full) is None and os.path.exists(full) else full
