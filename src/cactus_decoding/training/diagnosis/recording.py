"""Both models' rows along lossless responses, with the draft's hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from cactus_decoding.generation.generate import stream
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.request import Request
from cactus_decoding.rules import Lossless
from cactus_decoding.training.trainable import draft_model


@dataclass(frozen=True, eq=False)
class Recorded:
    """Positions of lossless responses; every emitted token is one.

    Logarithms of probabilities are at temperature 1 without truncation, in float16: probable ones are right to one part
    in a thousand.

    Attributes:
        target: the target's rows, ``[positions, vocabulary]``.
        draft: the draft's rows for the same texts, of the same shape.
        hidden: what the draft's last layer made its rows from, ``[positions, width]``.
        token_ids: what was emitted, ``[positions]``.
        problem: which problem a position belongs to, ascending, ``[positions]``.
        draft_cost: seconds of a proposal over those of a step's target pass, on a GPU those in which they are begun.
        acceptance_length: tokens of a step in these responses.
    """

    target: Tensor
    draft: Tensor
    hidden: Tensor
    token_ids: Tensor
    problem: Tensor
    draft_cost: float
    acceptance_length: float


def record(
    pair: Pair,
    prompts: Sequence[str],
    request: Request,
    *,
    memory: int = 2**32,
    report: Callable[[int], None] = lambda done: None,
) -> Recorded:
    """Answer prompts losslessly and keep both models' rows at every position.

    Problem i is answered with the request's seed + i. Recording stops after the response with which the rows take
    ``memory`` bytes.

    Raises:
        ValueError: at temperature 0, for another rule, without proposals, or for a draft that is no model of its own.
    """
    check_request(request)
    model = draft_model(pair)
    made: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    metrics, taken, drafting, drafted, reading, passes = Metrics(), 0, 0.0, 0, 0.0, 0
    for number, prompt in enumerate(prompts):
        response, rows = stream(pair, prompt, replace(request, seed=(request.seed or 0) + number)), []
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
    """Raise `ValueError` for responses from which nothing can be diagnosed."""
    if request.sampling.temperature == 0:
        raise ValueError("the temperature must be above 0: at 0 a rejection says nothing of how far rows are apart")
    if not isinstance(request.rule, Lossless) or request.verification != "token":
        raise ValueError("lossless responses, verified token by token, are what a diagnosis looks at")
    request.check_chain("a diagnosis")
    if request.num_speculative_tokens.max_draft_tokens == 0:
        raise ValueError("num_speculative_tokens must be at least 1: without proposals nothing is rejected")


@torch.inference_mode()
def _read(model: PreTrainedModel, token_ids: list[int], start: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Return a draft's rows for the tokens from ``start`` on, and its last hidden states there."""
    given = torch.tensor([token_ids], device=model.device)
    output = model(given, output_hidden_states=True, use_cache=False)
    here = slice(start - 1, len(token_ids) - 1)
    logits = output.logits[0, here]
    logits = pad(logits, (0, vocabulary - logits.shape[-1]), value=-torch.inf)  # a negative pad cuts
    return _packed(logits), output.hidden_states[-1][0, here].float().cpu()


def _packed(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(-1).half().cpu()
