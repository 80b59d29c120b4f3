"""Train a small causal language model on word problems, with progress and resumption."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from cactus_decoding.core.files.writing import replacing
from factory.batches import ProblemSource, batch, training_problems

_MICRO_BATCH = 48


@dataclass(frozen=True)
class TrainingPlan:
    """How long and how fast to train.

    Most of the loss is the free choice among wordings, which is learned early; the digits decide whether an answer is
    right.
    """

    steps: int
    batch_size: int = 96
    learning_rate: float = 4e-3  # reached after ``warmup`` steps, held, and brought to zero over the last ``decay``
    warmup: int = 50
    decay: float = 0.4  # a fraction of the steps
    emphasis: float = 1.0  # weight of result digits in the loss, against 1 for other tokens of a solution
    emphasis_after: int = 0  # so many steps
    drills_after: int | None = None  # step from which a third of each batch are bare equations
    long: bool = False  # whether two of three problems take at least four steps
    habit: float = 0.0  # how often a sentence is told in its kind's dominant way, rather than in any
    all_numbers: bool = False  # whether the emphasis is on operands too
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Learning rate at a step."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay * self.steps))


def small_llama(
    tokenizer: PreTrainedTokenizerBase, width: int, layers: int, mlp_width: int, head_width: int = 64
) -> LlamaConfig:
    """Return a Llama configuration with tied embeddings and 1,024 positions."""
    ends = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    return LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=layers, intermediate_size=mlp_width,
        num_attention_heads=width // head_width, num_key_value_heads=width // head_width,
        max_position_embeddings=1024, tie_word_embeddings=True, **ends,
    )  # fmt: skip


def train_language_model(
    config: LlamaConfig,
    tokenizer: PreTrainedTokenizerBase,
    plan: TrainingPlan,
    checkpoint: Path,
    report: Callable[[int, float], None],
    seconds_between_checkpoints: float = 120,
    initial: Mapping[str, Tensor] | None = None,
    source: ProblemSource | None = None,
) -> LlamaForCausalLM:
    """Train from the plan's seed, or go on from ``checkpoint`` where one was left by an interrupted run.

    Matrices are trained by Muon, the rest by AdamW. ``report`` is called with the step and its loss in nats a token.
    ``initial`` weights take the place of random ones, and the problems of ``source`` those of the bundled models.

    Raises:
        ValueError: for a checkpoint that is damaged, of another shape, or of another plan.
    """
    source = source or partial(training_problems, habit=plan.habit)
    torch.manual_seed(plan.seed)
    model = LlamaForCausalLM(config)
    if initial is not None:
        model.load_state_dict(initial)
    model.set_attn_implementation("eager")  # on a CPU, for sequences this short, faster than the fused kernel
    model.train()
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    optimizers = [
        torch.optim.Muon(matrices, lr=plan.learning_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    start = _restore(checkpoint, model, optimizers, plan)
    saved = time.monotonic()
    for step in range(start, plan.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = plan.rate_at(step)
        emphasis = plan.emphasis if step >= plan.emphasis_after else 1.0
        drills = plan.drills_after is not None and step >= plan.drills_after
        options = plan.long, plan.all_numbers, source
        loss = _accumulate(model, *batch(tokenizer, plan.seed, step, plan.batch_size, emphasis, drills, *options))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        report(step + 1, loss)
        if time.monotonic() - saved > seconds_between_checkpoints:
            _save(checkpoint, model, optimizers, plan, step + 1)
            saved = time.monotonic()
    _save(checkpoint, model, optimizers, plan, plan.steps)
    return model.eval()


def _accumulate(model: LlamaForCausalLM, input_ids: Tensor, weights: Tensor) -> float:
    """Add the gradient of the weighted mean cross-entropy; return that mean.

    Right padding needs no mask, because attention is causal. Slices of the batch keep activations in the CPU's caches.
    """
    labels, weights = input_ids[:, 1:], weights[:, 1:]
    counted = weights > 0
    total = 0.0
    for rows in range(0, len(input_ids), _MICRO_BATCH):
        part = slice(rows, rows + _MICRO_BATCH)
        with torch.autocast(input_ids.device.type, dtype=torch.bfloat16):
            hidden = model.model(input_ids=input_ids[part], use_cache=False).last_hidden_state[:, :-1]
            logits = model.lm_head(hidden[counted[part]])
        losses = cross_entropy(logits.float(), labels[part][counted[part]], reduction="none")
        loss = (losses * weights[part][counted[part]]).sum() / weights.sum()
        loss.backward()
        total += loss.item()
    return total


def _save(
    path: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], plan: TrainingPlan, step: int
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"step": step, "plan": asdict(plan), "model": model.state_dict()}
    state["optimizers"] = [each.state_dict() for each in optimizers]
    with replacing(path) as part:  # an interrupted save leaves the previous checkpoint whole
        torch.save(state, part)


def _restore(path: Path, model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], plan: TrainingPlan) -> int:
    if not path.exists():
        return 0
    try:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    except (RuntimeError, KeyError, ValueError, EOFError, UnpicklingError) as error:
        raise ValueError(
            f"the checkpoint {str(path)!r} is damaged or of another model; remove it to start afresh"
        ) from error
    if state.get("plan", asdict(plan)) != asdict(plan):
        raise ValueError(f"the checkpoint {str(path)!r} is of another training plan; remove it to start afresh")
    return int(state["step"])
