"""transformers' `Trainer` with a loss of both models' probabilities, which evaluates the acceptance length."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from transformers import PreTrainedModel, Trainer

from cactus_decoding.engines.transformers.partial_head import PartialHead
from cactus_decoding.lab.evaluation.score import steps_of_texts
from cactus_decoding.lab.training.acceptance.data import IGNORED
from cactus_decoding.lab.training.acceptance.losses import Loss, Rows, chosen, log_rows
from cactus_decoding.lab.training.acceptance.row_cache import RowCache, coarse
from cactus_decoding.lab.training.acceptance.sampling import Continuations
from cactus_decoding.lab.training.acceptance.saving import naming
from cactus_decoding.lab.training.acceptance.settings import AdaSpec

_CHUNK = 16  # steps whose sequences are sorted together


class LengthGroups(Sampler[int]):
    """Yields places of sequences in an order of its own for each epoch, a pure function of the seed.

    Sequences are drawn without regard to their lengths in chunks of several steps, sorted inside a chunk, and the steps
    of a chunk are shuffled. So every sequence comes once an epoch, and short and long steps alternate. A step takes
    ``step`` sequences, those of all batches and processes.
    """

    def __init__(self, lengths: Sequence[int], step: int, seed: int) -> None:
        self._lengths, self._step, self._seed, self._epoch = lengths, step, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = random.Random(f"{self._seed} {self._epoch}")
        order = list(range(len(self._lengths)))
        rng.shuffle(order)
        for start in range(0, len(order), self._step * _CHUNK):
            chunk = sorted(order[start : start + self._step * _CHUNK], key=self._lengths.__getitem__)
            steps = [chunk[i : i + self._step] for i in range(0, len(chunk), self._step)]
            last = [] if len(steps[-1]) == self._step else steps.pop()  # an incomplete step would shift those after it
            rng.shuffle(steps)
            yield from (place for step in [*steps, last] for place in step)


METRIC = "acceptance_length"  # the best checkpoint is chosen by it


class AcceptanceTrainer(Trainer):
    """Trains a draft along texts, by a loss of its probabilities and its target's.

    The loss is the mean over the tokens of a step, of all of its batches and processes. Where a filter or the draft's
    own continuations change what counts in a batch, the batch keeps its weight. A filter needs the reference draft;
    without a cache, the target's probabilities are computed.
    """

    def __init__(
        self,
        *,
        target: PreTrainedModel,
        loss: Loss,
        num_speculative_tokens: int,
        filter: AdaSpec | None = None,
        reference: PreTrainedModel | None = None,
        continuations: Continuations | None = None,
        cache: RowCache | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.target, self.loss, self.num_speculative_tokens = target, loss, num_speculative_tokens
        self.filter, self.reference, self.continuations, self.cache = filter, reference, continuations, cache
        # whatever the model's own loss can do: tokens are counted, and the loss is divided by their number here
        self.model_accepts_loss_kwargs, self.loss_is_scaled_for_ga = True, True

    def _get_train_sampler(self, train_dataset: Any = None) -> LengthGroups:
        lengths = [len(each.token_ids) for _, each in train_dataset or self.train_dataset]
        step = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
        return LengthGroups(lengths, step, self.args.seed)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Scale a batch's loss so that the sum over a step's batches is the mean over its tokens."""
        counted = (inputs["labels"][:, 1:] != IGNORED).sum()
        indices = inputs.pop("index", None)
        if self.continuations is not None:
            inputs = self.continuations.mixed(inputs, self.accelerator.unwrap_model(model), self.state.global_step)
        reads = self.loss.reads_target or self.filter is not None
        target = self._target_rows(inputs, indices) if reads else ()
        rows = self._rows(model, inputs, target) if reads else self._own_rows(model, inputs)
        losses = self.loss(rows)
        if self.filter is not None and self.reference is not None:
            with torch.no_grad():
                reference = self._rows(self.reference, inputs, target)
            losses = losses[self.filter.chosen(rows, reference)]
        loss = losses.mean()
        if not bool(loss.isfinite()):
            raise ValueError(
                f"the loss is {loss.item()} after step {self.state.global_step}; what was saved before is whole. Try a "
                "smaller learning rate, with another output"
            )
        if num_items_in_batch is not None:  # processes' gradients are averaged, not added up
            loss = loss * (counted / num_items_in_batch) * self.accelerator.num_processes
        return (loss, None) if return_outputs else loss

    @torch.no_grad()
    def _target_rows(self, inputs: dict[str, Any], indices: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the target's logits of a batch or, given its places in the cache, what it kept of them."""
        if self.cache is not None and indices is not None:
            return tuple(part.to(inputs["labels"].device) for part in self.cache.rows(indices.tolist()))
        return (self._logits(self.target, inputs),)

    def _own_rows(self, model: torch.nn.Module, inputs: dict[str, Any]) -> Rows:
        """Return a draft's rows for both models, over the part of the vocabulary that it proposes from."""
        labels = inputs["labels"][:, 1:]
        mask, head = labels != IGNORED, self.accelerator.unwrap_model(model).get_output_embeddings()
        token_ids, kept = labels[mask], torch.ones_like(labels[mask], dtype=torch.bool)
        if isinstance(head, PartialHead):
            token_ids, kept = head.places(token_ids)
        with head.alone() if isinstance(head, PartialHead) else nullcontext():
            rows = log_rows(self._logits(model, inputs)[mask])
        return Rows(rows.detach(), rows, chosen(rows, token_ids).where(kept, -math.inf), mask)

    def _rows(self, model: torch.nn.Module, inputs: dict[str, Any], target: tuple[Tensor, ...]) -> Rows:
        labels = inputs["labels"][:, 1:]
        given = self._logits(model, inputs), labels.clamp(min=0), labels != IGNORED
        first, *more = target
        return coarse(first, more[0], self.cache.vocabulary, *given) if self.cache and more else Rows.of(first, *given)

    @staticmethod
    def _logits(model: torch.nn.Module, inputs: dict[str, Any]) -> Tensor:
        texts = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        logits: Tensor = model(**texts, use_cache=False).logits[:, :-1]
        return logits

    @torch.no_grad()
    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Return loss and acceptance of the positions of a set of sequences, and their tokens per step.

        The acceptance length is the number of tokens over the expected number of steps (see `steps_taken`), by lossless
        verification or by the rule that the loss trains for. Cache and filter are not used.
        """
        self.model.eval()
        sums = torch.zeros(4, dtype=torch.float64, device=self.args.device)
        for batch in self.get_eval_dataloader(eval_dataset):
            batch.pop("index", None)
            with self.compute_loss_context_manager():
                prepared = self._prepare_inputs(batch)
                rows = self._rows(self.model, prepared, self._target_rows(prepared))
                accepted = self.loss.acceptance(rows)
                losses = self.loss(rows)
            of_positions = torch.zeros(*rows.mask.shape, 3, dtype=torch.float64, device=self.args.device)
            of_positions[rows.mask] = torch.stack([losses, accepted, torch.ones_like(accepted)], -1).double()
            steps = steps_of_texts(accepted, rows.mask, self.num_speculative_tokens).to(of_positions.device)
            of_texts = torch.cat([of_positions.sum(1), steps.unsqueeze(-1)], -1)
            # the last batches of some processes repeat sequences, which are left out here
            sums += self.accelerator.gather_for_metrics(of_texts).sum(0)
        loss, acceptance, positions, steps_in_all = sums.tolist()
        names = {"loss": loss / positions, "acceptance": acceptance / positions, METRIC: positions / steps_in_all}
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in names.items()}
        self.log(metrics)
        handler: Any = self.callback_handler
        self.control: Any = handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with naming(Path(self.args.output_dir), "; the last checkpoint is whole"):
            super()._save_checkpoint(model, trial)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Never take a metric that is not finite for the best."""
        finite = math.isfinite(metrics[f"eval_{METRIC}"])
        return bool(finite and super()._determine_best_metric(metrics, trial))
