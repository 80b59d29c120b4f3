"""The patch of vLLM's scheduler: how many proposals of each request the target verifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cactus_decoding.engines.vllm.extra_args import PROPOSALS_KEY
from cactus_decoding.engines.vllm.patches import replace


def install() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    replace(Scheduler, "schedule", with_fewer_proposals)


def with_fewer_proposals(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Drop the proposals that a request does not want verified, before the scheduler makes room for them.

    How many are kept is known before they are drawn, so what is kept has the draft's distribution. Where all requests
    of a step want fewer proposals than the server's number, the draft makes fewer.
    """

    def schedule(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        most = scheduler.num_spec_tokens
        if not most:
            return stock(scheduler, *args, **kwargs)
        for request in scheduler.running:
            limit = proposals_of(request, most)
            if len(request.spec_token_ids) > limit:
                request.spec_token_ids = request.spec_token_ids[:limit]
        output = stock(scheduler, *args, **kwargs)
        if output.num_scheduled_tokens and not scheduler.use_v2_model_runner:  # which captures graphs for one number
            wanted = max(proposals_of(scheduler.requests[name], most) for name in output.num_scheduled_tokens)
            output.num_spec_tokens_to_schedule = min(output.num_spec_tokens_to_schedule, wanted)
        return output

    return schedule


def proposals_of(request: Any, most: int) -> int:
    """Return how many proposals of a request are verified; a bad value, refused by the front end, is no limit."""
    asked = getattr(request.sampling_params, "extra_args", None) or {}
    value = asked.get(PROPOSALS_KEY)
    return min(value, most) if isinstance(value, int) and value >= 0 else most
