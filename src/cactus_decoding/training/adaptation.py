"""Training a draft while it serves: a step after a response, on the rows that verification has produced anyway."""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.utils import SAFE_WEIGHTS_NAME

from cactus_decoding import zoo
from cactus_decoding.arguments.checks import check_integer, check_number
from cactus_decoding.files.writing import check_folder
from cactus_decoding.generation.generate import Response
from cactus_decoding.generation.pair import Pair, load_pair
from cactus_decoding.models.loading import load_tokenizer, only_cached
from cactus_decoding.training.acceptance.data import IGNORED, TokenSequence, collate
from cactus_decoding.training.acceptance.losses import parse_loss
from cactus_decoding.training.acceptance.row_cache import coarse, likeliest
from cactus_decoding.training.acceptance.saving import naming
from cactus_decoding.training.trainable import draft_model
from cactus_decoding.types import Outcome

SLOWEST = 8
"""Steps are timed over so many of the last ones."""


class Text(NamedTuple):
    """A response to learn from.

    Attributes:
        sequence: tokens of prompt and response.
        top_ids: the target's likeliest tokens at each of the response's tokens, ``[response, top]``.
        top_log_probs: the logarithms of their probabilities at temperature 1.
    """

    sequence: TokenSequence
    top_ids: Tensor
    top_log_probs: Tensor


class DraftAdaptation:
    r"""Trains a pair's draft between responses, so that it follows what the pair is used for.

    After a response the draft reads it once more, together with some earlier ones, and takes one step of AdamW on a
    loss of its rows and the target's, which verification had computed. Every token of a response counts: whatever was
    accepted, the target's row there is known. The rows are those at temperature 1, and only their likeliest tokens are
    kept (`RowCache`).

    The draft changes between responses, never within one: each proposal is drawn from the row that it is judged by, so
    every statement about the law of a response holds whatever was learned before it. What a seed gives does change with
    the draft, except at temperature 0.

    Args:
        pair: the models; nothing else may use the draft meanwhile.
        folder: a Hugging Face model, where weights are saved; nowhere, if None.
        loss: its spelling; see `parse_loss`.
        learning_rate: of AdamW.
        max_time_share: of the time that responses take, the most that steps take: a response after which there is no
            such time left is kept for a later step. A step that took longer than was thought is made up for.
        replay: how many responses are remembered.
        batch: how many of them a step sees at most, the latest included.
        save_every: seconds between savings, which are not counted as time of steps.
        seed: of the choice of what is remembered.

    Attributes:
        steps: how many were taken.
        seconds: that they took.
        response_seconds: that responses took.

    Raises:
        ValueError: for a draft that is no model of transformers, or a setting out of range.

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
        folder: Path | None = None,
        *,
        loss: str = "lk",
        learning_rate: float = 1e-4,
        max_time_share: float = 0.1,
        replay: int = 64,
        batch: int = 8,
        save_every: float = 60.0,
        seed: int = 0,
    ) -> None:
        self._model = draft_model(pair)
        check_number("learning_rate", learning_rate, 0, 1, low_open=True)
        check_number("max_time_share", max_time_share, 0, 1)
        check_integer("replay", replay, 1)
        check_integer("batch", batch, 1)
        self.pair, self.folder, self.steps, self.seconds, self.response_seconds = pair, folder, 0, 0.0, 0.0
        self._loss = parse_loss(loss)
        self._share, self._batch, self._save_every = max_time_share, batch, save_every
        self._texts: deque[Text] = deque(maxlen=replay)
        self._random, self._speed = random.Random(seed), deque[float](maxlen=SLOWEST)
        self._saved, self._changed = time.monotonic(), False
        # steps are too small for 16 bits: they add up in float32
        self._parameters = [each.requires_grad_() for each in self._model.parameters()]
        self._precise = [each.detach().float().clone().requires_grad_() for each in self._parameters]
        self._optimizer = torch.optim.AdamW(self._precise, lr=learning_rate, weight_decay=0.0)

    @classmethod
    def load(
        cls, folder: Path, target: str | None = None, draft: str | None = None, *, learning_rate: float = 1e-4
    ) -> DraftAdaptation:
        """Return the adaptation of the draft in a folder, which begins as a copy of ``draft`` where there is none.

        Raises:
            ValueError: for models that cannot be loaded, or a folder that cannot be written.
        """
        check_folder(folder)
        begun = (folder / "config.json").exists()
        pair = load_pair(target, folder if begun else draft)
        adaptation = cls(pair, folder, learning_rate=learning_rate)
        if not begun:
            source = zoo.draft_path(zoo.BUNDLED if draft is None else draft) or str(draft)
            tokenizer: Any = load_tokenizer("draft", source, local=only_cached("draft", source))
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            rmtree(unfinished, ignore_errors=True)
            with naming(folder):
                adaptation._model.save_pretrained(unfinished, max_shard_size="1TB")
                tokenizer.save_pretrained(unfinished)
                unfinished.rename(folder)
        return adaptation

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
        self._texts.append(text)
        chosen = self._affordable()
        if not chosen:
            return False
        began = time.perf_counter()
        self._step(chosen)
        took = time.perf_counter() - began
        self.seconds += took
        self.steps += 1
        self._speed.append(took / sum(len(each.sequence.token_ids) for each in chosen))
        if self.folder is not None and time.monotonic() - self._saved >= self._save_every:
            self.save()
        return True

    def _affordable(self) -> list[Text]:
        """Return the latest response and others drawn from the earlier ones, as many as there is time for."""
        left = self._share * self.response_seconds - self.seconds
        tokens = left / max(self._speed) if self._speed else float(left > 0)
        earlier = list(self._texts)[:-1]
        order = [self._texts[-1], *self._random.sample(earlier, min(len(earlier), self._batch - 1))]
        chosen: list[Text] = []
        for each in order:
            if chosen or self._speed:  # how long the first step takes is not known before it
                tokens -= len(each.sequence.token_ids)
                if tokens < 0:
                    break
            elif not tokens:
                break
            chosen.append(each)
        return chosen

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
        rows = coarse(top_ids, top_log_probs, logits, labels.clamp(min=0), labels != IGNORED)
        loss = self._loss(rows).mean()
        gradients = torch.autograd.grad(loss, self._parameters)
        if not bool(loss.isfinite()) or not all(bool(each.isfinite().all()) for each in gradients):
            return
        for precise, gradient in zip(self._precise, gradients, strict=True):
            precise.grad = gradient.float()
        nn.utils.clip_grad_norm_(self._precise, 1.0)
        self._optimizer.step()
        with torch.no_grad():
            for parameter, precise in zip(self._parameters, self._precise, strict=True):
                parameter.copy_(precise)
        self._changed = True
        self.pair.drafter.reset()  # what it has cached was computed with other weights

    def summary(self) -> str:
        """Return how much was learned, in a line."""
        share = 100 * self.seconds / self.response_seconds if self.response_seconds else 0.0
        where = "" if self.folder is None else f"; the draft is in {self.folder}"
        return f"adapted by {self.steps} steps in {self.seconds:.1f} s, {share:.0f} % of the answers' time{where}"

    def save(self) -> None:
        """Write the weights, all or nothing.

        Raises:
            OSError: where they cannot be written; what was written before stays.
        """
        if self.folder is None or not self._changed:
            return
        unfinished = self.folder / ".saving"
        rmtree(unfinished, ignore_errors=True)
        with naming(self.folder):
            self._model.save_pretrained(unfinished, max_shard_size="1TB")
            os.replace(unfinished / SAFE_WEIGHTS_NAME, self.folder / SAFE_WEIGHTS_NAME)
        rmtree(unfinished)
        self._saved, self._changed = time.monotonic(), False
