"""Both models' probabilities along lossless responses, and what a small change of the draft's last layer would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cactus_decoding.core.generate import stream
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.lab.training.acceptance.losses import Lk, Rows
from cactus_decoding.lab.training.acceptance.material import draft_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class Recorded:
    """Positions of lossless responses; every emitted token is one.

    Logarithms of probabilities are at temperature 1 without truncation, in float16: probable ones are right to one part
    in a thousand.
    """

    target: Tensor  # ``[positions, vocabulary]``
    draft: Tensor  # the same texts and shape
    hidden: Tensor  # the draft's last hidden states, ``[positions, width]``
    token_ids: Tensor
    problem: Tensor  # of each position, ascending
    draft_cost: float  # seconds of a proposal over those of a step's target pass; on a GPU, of starting them
    acceptance_length: float  # tokens per step


def record(
    pair: Pair,
    prompts: Sequence[str],
    request: Request,
    *,
    memory: int = 2**32,
    report: Callable[[int], None] = lambda done: None,
) -> Recorded:
    """Answer prompts losslessly and keep both models' probabilities at every position.

    Problem i is answered with the request's seed + i. Recording stops after the response with which they take
    ``memory`` bytes.
    """
    check_request(request)
    model = draft_model(pair)
    made: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    metrics, taken, drafting, drafted, reading, passes = Metrics(), 0, 0.0, 0, 0.0, 0
    for number, prompt in enumerate(prompts):
        response, rows = stream(pair, prompt, request.replace(seed=(request.seed or 0) + number)), []
        for outcome in response:
            rows.append(_packed(outcome.rows.logits[: outcome.num_emitted]))
            if len(rows) > 1:  # the first step also reads the prompt
                drafting, drafted = drafting + outcome.draft_seconds, drafted + outcome.num_drafted
                reading, passes = reading + outcome.target_seconds, passes + 1
        if len(response.token_ids) > 0:
            target = torch.cat(rows)
            prompt_ids = pair.tokenizer(prompt).input_ids
            draft, hidden = _read(model, [*prompt_ids, *response.token_ids], len(prompt_ids), target.shape[-1])
            made.append((target, draft, hidden, torch.tensor(response.token_ids)))
            taken += target.nbytes + draft.nbytes + hidden.nbytes
        metrics += response.metrics
        report(number + 1)
        if taken >= memory:
            break
    cost = (drafting / drafted) / (reading / passes) if drafted and reading > 0 else 0.0
    target, draft, hidden, token_ids = (torch.cat(each) for each in zip(*made, strict=True))
    problem = torch.cat([torch.full((len(each[0]),), number) for number, each in enumerate(made)])
    return Recorded(target, draft, hidden, token_ids, problem, cost, metrics.acceptance_length or 1.0)


def check_request(request: Request) -> None:
    if request.sampling.temperature == 0:
        raise ValueError("the temperature must be above 0: at 0 a rejection says nothing of how far rows are apart")
    if not isinstance(request.rule, Lossless) or request.verification != "token":
        raise ValueError("lossless responses, verified token by token, are what a diagnosis looks at")
    request.check_chain("a diagnosis")
    if request.num_speculative_tokens.max_draft_tokens == 0:
        raise ValueError("num_speculative_tokens must be at least 1: without proposals nothing is rejected")


@torch.inference_mode()
def _read(model: PreTrainedModel, token_ids: list[int], start: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return a draft's log-probabilities for the tokens from ``start`` on, and its last hidden states there."""
    given = torch.tensor([token_ids], device=model.device)
    output = model(given, output_hidden_states=True, use_cache=False)
    here = slice(start - 1, len(token_ids) - 1)
    logits = output.logits[0, here]
    logits = functional.pad(logits, (0, vocabulary - logits.shape[-1]), value=-torch.inf)  # a negative pad cuts
    return _packed(logits), output.hidden_states[-1][0, here].float().cpu()


def _packed(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).half().cpu()


FOLDS = 2
MOST_TOKENS = 4096
"""A probe changes at most so many tokens, those that both models give the most mass at its positions; its loss counts
the others as one outcome. Its acceptance is measured with all tokens."""
AT_ONCE = 2**25  # elements that are computed at once


class Outcomes(NamedTuple):
    """What a probe learns from.

    The log-probabilities are of ``tokens`` and of all others together, ``[positions, outcomes]``, without the others
    where there are none.
    """

    tokens: Tensor  # those that it changes, ascending
    target: Tensor
    draft: Tensor

    @classmethod
    def of(cls, rows: Recorded, places: Tensor) -> Outcomes:
        vocabulary = rows.target.shape[1]
        if vocabulary <= MOST_TOKENS:
            return cls(torch.arange(vocabulary), rows.target[places], rows.draft[places])
        parts = places.split(max(1, AT_ONCE // vocabulary))
        mass = sum(each[some].float().exp().sum(0) for each in (rows.target, rows.draft) for some in parts)
        tokens = torch.as_tensor(mass).topk(MOST_TOKENS).indices.sort().values
        target, draft = (
            torch.cat([_narrowed(each[some].float(), tokens) for some in parts]) for each in (rows.target, rows.draft)
        )
        return cls(tokens, target, draft)


def _narrowed(log_probs: Tensor, tokens: Tensor) -> Tensor:
    kept = log_probs[:, tokens]
    return torch.cat([kept, log_probs.index_fill_(1, tokens, -torch.inf).logsumexp(-1, keepdim=True)], -1).half()


@dataclass(frozen=True)
class Probe:
    r"""A low-rank change of a draft's last layer, trained for acceptance on some positions.

    .. math:: \log p'(x) = \log p(x) + (h A B + b)_x + \text{const}

    with h the draft's last hidden state, scaled to mean square 1. AdamW's learning rate falls to 0.

    More of any setting removes more rejections where the draft words things otherwise, and spoils more where it
    calculates.
    """

    rank: int = 4
    steps: int = 200
    batch: int = 512  # positions of each step
    learning_rate: float = 3e-3

    def fit(
        self, rows: Recorded, places: Tensor, seed: int = 0, report: Callable[[int], None] = lambda done: None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return A ``[width, rank]``, B ``[rank, vocabulary]`` and b ``[vocabulary]`` for positions ``places``."""
        generator, vocabulary = torch.Generator().manual_seed(seed), rows.draft.shape[1]
        width, loss, (tokens, target, draft) = rows.hidden.shape[1], Lk(), Outcomes.of(rows, places)
        first = torch.randn(width, self.rank, generator=generator) / width**0.5
        weights = [first, torch.zeros(self.rank, draft.shape[1]), torch.zeros(draft.shape[1])]
        of_tokens = torch.arange(draft.shape[1]) < len(tokens)  # the others as a whole stay what they are
        for each in weights:
            each.requires_grad_()
        optimizer = torch.optim.AdamW(weights, lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, self.steps)
        batch = max(16, min(self.batch, 2**24 // draft.shape[1]))
        for step in range(self.steps):
            # of few positions each is drawn often, and looked at once
            some, often = torch.randint(len(places), (batch,), generator=generator).unique(return_counts=True)
            changed = draft[some].float() + change(rows.hidden[places[some]], *weights) * of_tokens
            nowhere = torch.zeros(1, len(some), dtype=torch.long)  # the loss does not ask which tokens stand there
            value = (loss(Rows.of(target[some].float()[None], changed[None], nowhere)) * often).sum() / batch
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            schedule.step()
            report(step + 1)
        whole = torch.zeros(self.rank + 1, vocabulary)
        whole[:, tokens] = torch.cat([weights[1], weights[2][None]]).detach()[:, : len(tokens)]
        return weights[0].detach(), whole[:-1], whole[-1]

    def held_out(
        self, rows: Recorded, report: Callable[[int], None] = lambda done: None
    ) -> list[tuple[Tensor, tuple[Tensor, Tensor, Tensor]]]:
        """Return, for each fold of problems, its positions and what was fitted to all the others."""
        fold, found = rows.problem % FOLDS, []
        for i in range(FOLDS):
            others = (fold != i).nonzero()[:, 0]
            weights = self.fit(rows, others, report=lambda done, before=i * self.steps: report(before + done))  # type: ignore[misc]
            found.append(((fold == i).nonzero()[:, 0], weights))
        return found


def change(hidden: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> Tensor:
    """Return what a probe adds to logits, ``[positions, vocabulary]``."""
    scaled = hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-6)
    return scaled @ first @ second + bias
