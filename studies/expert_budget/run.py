"""What a limit on the experts of a verification pass changes in the target's rows: docs/studies/expert_budget.md.

    python -m studies.expert_budget.run                   minutes on one core, most of them training
    python -m studies.expert_budget.run --only-render     the table from the result file

A small mixture of experts learns word problems for some steps. Windows of held-out solutions are then read in one pass
each, as a verification pass reads proposals, with all the experts that their tokens ask for, and with so many at most
in each layer: those that the window's tokens give the most routing probability together. A token whose experts are
missing either takes the next best of those that are there (`substitute`), or goes without (`truncate`). The same is
done with the mixture before its training. Source: MoE-Spec (McDanel et al., arXiv 2602.16052).
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from transformers import AutoTokenizer, MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerBase

from cactus_decoding import zoo
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.zoo.word_problems import word_problems
from factory.batches import batch
from scripts.pages import columns
from studies.study import study

RESULTS = Path(__file__).with_name("results") / "expert_budget.json.gz"
EXPERTS, PER_TOKEN, LAYERS, WIDTH = 16, 2, 4, 128
WINDOWS = (4, 8, 16)
BUDGETS = (2, 4, 6, 8, 12)
Way = Literal["substitute", "truncate"]
WAYS: tuple[Way, ...] = ("substitute", "truncate")


def mixture(tokenizer: PreTrainedTokenizerBase, seed: int) -> MixtralForCausalLM:
    """Return a random mixture for the bundled vocabulary."""
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=len(tokenizer), hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, tie_word_embeddings=True,
        num_local_experts=EXPERTS, num_experts_per_tok=PER_TOKEN, router_aux_loss_coef=0.01,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return MixtralForCausalLM(config).eval()


def train(model: MixtralForCausalLM, tokenizer: PreTrainedTokenizerBase, steps: int, seed: int) -> float:
    """Train on word problems, with the usual loss that balances experts; return the last steps' nats per token."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01), list[float]()
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 30, (steps - step) / (0.4 * steps))
        ids, weights = batch(tokenizer, seed, step, 24)
        output = model(input_ids=ids, output_router_logits=True)
        targets, wanted = ids[:, 1:].flatten(), weights[:, 1:].flatten()
        each = cross_entropy(output.logits[:, :-1].flatten(0, 1), targets, reduction="none")
        loss = (each * wanted).sum() / wanted.sum()
        (loss + model.config.router_aux_loss_coef * output.aux_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    return mean(losses[-20:])


@contextmanager
def experts_limited(model: MixtralForCausalLM, budget: int, way: Way) -> Iterator[list[int]]:
    """Let each layer of a pass use ``budget`` experts at most; yields how many were used, layer by layer."""
    used: list[int] = []

    def limit(router: nn.Module, given: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        logits, scores, indices = output
        probs = linear(given[0].flatten(0, -2), router.weight).float().softmax(-1)  # versions return other things
        shortlist = torch.zeros(probs.shape[-1], dtype=torch.bool)
        shortlist[probs.sum(0).topk(budget).indices] = True
        if way == "substitute":
            scores, indices = probs.masked_fill(~shortlist, 0.0).topk(indices.shape[-1], dim=-1)
            scores = scores / scores.sum(-1, keepdim=True)
        else:
            scores = scores * shortlist[indices]
        used.append(len(indices[scores > 0].unique()))
        return logits, scores, indices

    hooks = [layer.mlp.gate.register_forward_hook(limit) for layer in model.model.layers]
    try:
        yield used
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def compare(model: MixtralForCausalLM, texts: Sequence[tuple[list[int], int]], name: str) -> list[dict[str, Any]]:
    """Return, by window, budget and way, what the limit changes in rows: means over the windows' positions."""
    cached, rows = CachedModel(model), []
    for width in WINDOWS:
        found: dict[tuple[int, Way], dict[str, list[float]]] = {}
        asked: list[int] = []
        for ids, start in texts:
            cached.reset()
            for place in range(start, len(ids) - width, width):
                cached.append(ids[cached.length : place], rows=1)
                with experts_limited(model, EXPERTS, "substitute") as used:
                    full = cached.append(ids[place : place + width], rows=width).double().log_softmax(-1)
                asked += used
                for budget in BUDGETS:
                    for way in WAYS:
                        cached.rollback(place)
                        with experts_limited(model, budget, way) as used:
                            other = cached.append(ids[place : place + width], rows=width).double().log_softmax(-1)
                        into = found.setdefault((budget, way), {"used": [], "tv": [], "kl": [], "argmax": []})
                        into["used"] += used
                        into["tv"] += ((other.exp() - full.exp()).abs().sum(-1) / 2).tolist()
                        into["kl"] += (other.exp() * (other - full)).sum(-1).clamp_min(0).tolist()
                        into["argmax"] += (other.argmax(-1) != full.argmax(-1)).double().tolist()
                cached.rollback(place)
        for (budget, way), values in found.items():
            about = {"model": name, "window": width, "asked": mean(asked), "budget": budget, "way": way}
            rows.append(about | {key: mean(each) for key, each in values.items()} | {"positions": len(values["tv"])})
    return rows


def measure(given: Namespace) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target"))
    texts = []
    for problem in islice(word_problems("validation", seed=given.seed), given.problems):
        prompt = tokenizer(problem.prompt).input_ids
        texts.append((tokenizer(f"{problem.prompt} {problem.solution}").input_ids, len(prompt)))
    model = mixture(tokenizer, given.seed)
    rows = compare(model, texts, "random")
    loss = train(model, tokenizer, given.steps, given.seed)
    return {"rows": [*rows, *({**row, "loss": loss} for row in compare(model, texts, "trained"))], "experts": EXPERTS}


def shown(result: Any) -> dict[str, str]:
    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for row in result["rows"]:
        found.setdefault((row["model"], row["window"], row["budget"]), {})[row["way"]] = row
    heads = [
        ("mixture", "{substitute[model]}"), ("tokens in the pass", "{substitute[window]}"),
        ("experts asked for", "{substitute[asked]:.1f}"), ("budget", "{substitute[budget]}"),
        ("used", "{substitute[used]:.1f}"),
        ("total variation, substitute", "{substitute[tv]:.3f}"), ("truncate", "{truncate[tv]:.3f}"),
        ("KL, nats, substitute", "{substitute[kl]:.3f}"), ("truncate", "{truncate[kl]:.3f}"),
        ("other likeliest token, substitute", lambda ways: f"{100 * ways['substitute']['argmax']:.1f} %"),
    ]  # fmt: skip
    return {"expert-budget": columns(found.values(), heads)}


if __name__ == "__main__":
    study(__doc__, RESULTS, "studies/expert_budget.md", measure, shown, steps=400, problems=12, seed=0)
