"""Training a draft while it serves: a step after a response, on the rows that verification has produced anyway."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from cactus_decoding import zoo
from cactus_decoding.arguments.checks import check_integer, check_number
from cactus_decoding.arguments.later import Tensor, torch
from cactus_decoding.drafting.registry import check_names, parse_drafter
from cactus_decoding.generation.generate import Response
from cactus_decoding.generation.pair import Pair, load_pair
from cactus_decoding.models.cached import vocabulary_size
from cactus_decoding.models.llama_cpp.settings import parse_gguf
from cactus_decoding.models.loading import load_model, load_tokenizer, only_cached
from cactus_decoding.training.acceptance.data import IGNORED, TokenSequence, collate
from cactus_decoding.training.acceptance.losses import parse_loss
from cactus_decoding.training.acceptance.material import draft_model
from cactus_decoding.training.acceptance.row_cache import coarse, likeliest
from cactus_decoding.training.adapted_folder import AdaptedFolder, Record, Replay, Text, name_of
from cactus_decoding.types import Outcome


@contextmanager
def interruptions_held() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done.

    Only the main thread is ever interrupted, so that in another one there is nothing to hold back; nor is there where
    Ctrl-C ends the process, or is ignored.

    Example:
        >>> done = []
        >>> try:
        ...     with interruptions_held():
        ...         signal.raise_signal(signal.SIGINT)
        ...         done.append("the whole")
        ... except KeyboardInterrupt:
        ...     done.append("interrupted")
        >>> done
        ['the whole', 'interrupted']
    """
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    caught: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *given: caught.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            before(*caught[0])


SLOWEST = 8
"""Steps are timed over so many of the last ones."""


class DraftAdaptation:
    r"""Trains a pair's draft between responses, so that it follows what the pair is used for.

    After a response the draft reads it once more, together with some earlier ones, and takes one step of AdamW on a
    loss of its rows and the target's, which verification had computed. Every token of a response counts: whatever was
    accepted, the target's row there is known. The rows are those at temperature 1, and only their likeliest tokens are
    kept (`RowCache`).

    The draft changes between responses, never within one: each proposal is drawn from the row that it is judged by, so
    every statement about the law of a response holds whatever was learned before it, as long as its random numbers are
    fresh: with one seed for all, the draft learns from the numbers that it is judged by. What a seed gives does change
    with the draft, except at temperature 0.

    Args:
        pair: the models; nothing else may use the draft meanwhile.
        folder: where weights are saved; see `load`. Nowhere, if None.
        loss: its spelling; see `parse_loss`.
        learning_rate: of AdamW.
        max_time_share: of the time that responses take, the most that steps and savings take: a response after which
            there is no such time left is kept for a later step. How long the first step of all takes is known only
            after it; what it, or any other, took too long is made up for.
        replay: how many responses are remembered.
        batch: how many of them a step sees at most, the latest included.
        max_row_bytes: of a step's logits in float32, ``4 * texts * longest * vocabulary``; with what their gradient
            needs, rows take some eight times as much. Earlier responses are left out of a step, and a text that alone
            has more is cut.
        save_every: seconds between savings.
        seed: of the choice of what is remembered.

    Attributes:
        steps: how many were taken, with those of earlier processes that adapted the folder, as in what follows.
        seconds: that they took, and savings.
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

    def __init__(
        self,
        pair: Pair,
        folder: AdaptedFolder | None = None,
        *,
        loss: str = "lk",
        learning_rate: float = 1e-4,
        max_time_share: float = 0.1,
        replay: int = 64,
        batch: int = 8,
        max_row_bytes: int = 2**29,
        save_every: float = 60.0,
        seed: int = 0,
    ) -> None:
        self._model = draft_model(pair)
        check_number("learning_rate", learning_rate, 0, 1, low_open=True)
        check_number("max_time_share", max_time_share, 0, 1)
        check_integer("replay", replay, 1)
        check_integer("batch", batch, 1)
        check_integer("max_row_bytes", max_row_bytes, 1)
        self.pair, self.folder = pair, folder
        self._loss = parse_loss(loss)
        self._share, self._save_every = max_time_share, save_every
        self._replay = Replay(replay, batch, max(max_row_bytes // (4 * vocabulary_size(self._model)), 2), seed)
        self._saved, self._changed = time.monotonic(), False
        self._begun = Record("") if folder is None or folder.record is None else folder.record
        self.steps, self.seconds = self._begun.steps, self._begun.seconds
        self.response_seconds, self._saving = self._begun.response_seconds, self._begun.saving_seconds
        self._speed = deque(self._begun.seconds_per_token, maxlen=SLOWEST)
        self._parameters = [each.requires_grad_() for each in self._model.parameters()]
        # steps are too small for 16 bits: they add up in float32
        wide = (each.detach().to(torch.promote_types(each.dtype, torch.float32)) for each in self._parameters)
        self._precise = [each.clone().requires_grad_() for each in wide]
        self._optimizer = torch.optim.AdamW(self._precise, lr=learning_rate, weight_decay=0.0)

    @classmethod
    def load(
        cls, folder: str | Path, target: str | None = None, draft: str | Path | None = None, **settings: Any
    ) -> Self:
        """Return the adaptation of the draft in a folder, which begins as a copy of ``draft`` where it is new.

        The folder is held for this process until `close`. It is a Hugging Face model, whose weights are in float32
        whatever precision its configuration asks for: smaller steps than that has room for add up over processes. How
        much time all of them took stands beside them; the optimizer's moments and remembered responses are lost.

        Target and draft are as in `load_pair`; for a folder that was begun before, ``draft`` is what it began as a copy
        of, or None.

        Raises `OSError` for a folder that cannot be written; `ValueError` likewise, for one that another process holds,
        is no such folder or began as another draft; for models that cannot be loaded, and a draft that cannot be
        trained.
        """
        check_names(target, draft)
        if draft is not None and (parse_gguf(draft) or (isinstance(draft, str) and parse_drafter(draft))):
            raise ValueError(
                f"a draft that can be trained is a model of transformers with weights of its own, but not {draft!r}"
            )
        place = AdaptedFolder(folder, None if draft is None else name_of(draft))
        try:
            if place.record is not None:
                return cls(load_pair(target, place.path), place, **settings)._refined()
            if draft is None and target not in (None, zoo.BUNDLED):
                raise ValueError(f"a draft is missing for target {str(target)!r}: give the model that is to be trained")
            pair = load_pair(target, draft)
            model, name = draft_model(pair), name_of(zoo.BUNDLED if draft is None else draft)
            source = zoo.draft_path(name) or name
            place.begin(model, load_tokenizer("draft", source, local=only_cached("draft", source)), name)
            return cls(pair, place, **settings)
        except BaseException:
            place.close()
            raise

    def _refined(self) -> Self:
        """Return this, with the folder's weights in all of their precision."""
        if self.folder is not None and any(each.dtype.itemsize < 4 for each in self._parameters):
            wide = load_model("draft", self.folder.path, torch.float32, self._parameters[0].device)
            with torch.no_grad():
                for precise, each in zip(self._precise, wide.parameters(), strict=True):
                    precise.copy_(each)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Save, and leave the folder to other processes; raise `OSError` where it cannot be written."""
        try:
            self.save()
        finally:
            if self.folder is not None:
                self.folder.close()

    def watch(self, response: Response) -> Iterator[Outcome]:
        """Take a response's steps, yield their outcomes, and learn from it when it is finished.

        One that is left before its end is not learned from.
        """
        ids: list[Tensor] = []
        log_probs: list[Tensor] = []
        kept = 0.0
        response.request.check_chain("adapting a draft")
        for outcome in response:
            began = time.perf_counter()
            top = likeliest(outcome.rows.logits[: outcome.num_emitted])
            ids.append(top[0])
            log_probs.append(top[1])
            kept += time.perf_counter() - began
            yield outcome
        if response.token_ids:
            self.seconds += kept
            prompt = response.prompt_token_ids
            sequence = TokenSequence([*prompt, *response.token_ids], len(prompt))
            self.learn(Text(sequence, torch.cat(ids), torch.cat(log_probs)), response.metrics.seconds)

    def learn(self, text: Text, seconds: float) -> bool:
        """Remember a response that took so long, and take a step if there is time; return whether there was."""
        self.response_seconds += seconds
        self._replay.add(text, self.pair.drafter.max_length)
        chosen = self._chosen()
        if not chosen:
            return False
        began = time.perf_counter()
        try:
            self._step(chosen)
        finally:
            took = time.perf_counter() - began
            self.seconds += took
        self._speed.append(took / sum(len(each.sequence.token_ids) for each in chosen))
        if time.monotonic() - self._saved >= self._save_every:
            self.save()
        return True

    def _chosen(self) -> list[Text]:
        """Return the texts of the next step: none where there is no time for one."""
        # a step is not done before it is saved
        left = self._share * self.response_seconds - self.seconds - (0.0 if self.folder is None else self._saving)
        return self._replay.choose(left / max(self._speed) if self._speed else None) if left > 0 else []

    @torch.enable_grad()
    def _step(self, texts: list[Text]) -> None:
        """Take one step; a loss that is not finite changes nothing."""
        device = self._parameters[0].device
        batch = {name: values.to(device) for name, values in collate([each.sequence for each in texts]).items()}
        labels = batch.pop("labels")[:, 1:]
        logits = self._model(**batch, use_cache=False).logits[:, :-1]
        top_ids, top_log_probs = (
            torch.cat([getattr(each, name) for each in texts]).to(device) for name in ("top_ids", "top_log_probs")
        )
        size = self.pair.target.vocabulary_size
        rows = coarse(top_ids, top_log_probs, size, logits, labels.clamp(min=0), labels != IGNORED)
        loss = self._loss(rows).mean()
        gradients = torch.autograd.grad(loss, self._parameters)
        if not bool(loss.isfinite()) or not all(bool(each.isfinite().all()) for each in gradients):
            return
        for precise, gradient in zip(self._precise, gradients, strict=True):
            precise.grad = gradient.to(precise.dtype)
        torch.nn.utils.clip_grad_norm_(self._precise, 1.0)
        with interruptions_held(), torch.no_grad():
            self._change()

    def _change(self) -> None:
        """Have the draft follow the optimizer's step; where that fails, the draft stays as it is."""
        try:
            self._optimizer.step()
        except BaseException:  # such as a lack of memory for its moments
            for precise, parameter in zip(self._precise, self._parameters, strict=True):
                precise.copy_(parameter)
            self._optimizer.state.clear()
            raise
        for parameter, precise in zip(self._parameters, self._precise, strict=True):
            parameter.copy_(precise)
        self.pair.drafter.reset()  # what it has cached was computed with other weights
        self._changed = True
        self.steps += 1
        self._precise[-1].sum().item()  # a GPU has done it all by now

    def summary(self) -> str:
        """Return how much was learned, in a line."""
        share = 100 * self.seconds / self.response_seconds if self.response_seconds else 0.0
        now = f" ({self.steps - self._begun.steps} of them now)" if self._begun.steps else ""
        where = "" if self.folder is None else f"; the draft is in {self.folder.path}"
        return (
            f"adapted by {self.steps} steps{now} in {self.seconds:.1f} s, savings included: {share:.0f} % of the "
            f"answers' time{where}"
        )

    def save(self) -> None:
        """Write the weights, all or nothing, and how much time they took.

        Raises `OSError` where they cannot be written; what was written before stays.
        """
        if self.folder is None or self.folder.record is None:
            return
        changed = self._changed
        if changed:
            began = time.perf_counter()
            try:
                self.folder.stage(self._model, self._weights())
            finally:
                self._saving = time.perf_counter() - began
                self.seconds += self._saving
        times = self.steps, self.seconds, self.response_seconds, self._saving, tuple(self._speed)
        self.folder.commit(Record(self.folder.record.draft, *times), staged=changed)
        self._saved, self._changed = time.monotonic(), False

    def _weights(self) -> dict[str, Tensor]:
        """Return the draft's weights by their names, as they add up."""
        precise = {id(each): wide.detach() for each, wide in zip(self._parameters, self._precise, strict=True)}
        found = self._model.state_dict(keep_vars=True)
        return {name: precise.get(id(value), value) for name, value in found.items()}
