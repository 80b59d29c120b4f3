"""A run as a stream of events, one JSON object a line."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from anyio.to_thread import run_sync

from cactus_decoding.files.writing import as_json
from cactus_decoding.playground.pair_store import PairStore
from cactus_decoding.playground.request import RunRequest
from cactus_decoding.playground.runs import Runs
from cactus_decoding.serving.request_queue import RequestQueue

Events = AsyncGenerator[Mapping[str, Any], None]


async def events(queue: RequestQueue, pairs: PairStore, runs: Runs, request: RunRequest) -> Events:
    """Wait, load, generate: the sessions take turns, a step each, so that the one with fewer steps ends first.

    Events are ``queued`` (with how many are ``ahead``), ``loading``, ``started`` (with the ``run``, its ``seed`` and
    its ``sessions``), ``step`` (with ``session``, new ``positions``, the ``trees`` that steps
    proposed, by the step's number, and the ``metrics`` so far), ``ended`` (with
    ``session`` and what `Session.end` says), ``finished``, or at any point ``error`` (with a ``message``) as the last.
    """
    with queue.join() as place:  # only here: an answer that is never begun must not hold a place
        try:
            async for ahead in place.ahead():
                yield {"event": "queued", "ahead": ahead}
            if not pairs.has(request.target, request.draft):
                yield {"event": "loading"}
            pair = await run_sync(pairs.get, request.target, request.draft)
            run = await run_sync(runs.begin, pair, request)
            yield {"event": "started", "run": run.name, "seed": run.seed, "sessions": run.describe()}
            going = dict(enumerate(run.sessions))
            while going and not run.stopped:
                for index, session in list(going.items()):
                    step = await run_sync(session.step)
                    if step is None:
                        del going[index]
                        yield {"event": "ended", "session": index, **session.end()}
                    else:
                        yield {"event": "step", "session": index, **step}
            for index, session in going.items():
                yield {"event": "ended", "session": index, **session.end(stopped=True)}
            yield {"event": "finished"}
        except (ValueError, TypeError) as error:
            yield {"event": "error", "message": " ".join(str(error).split())}
        except Exception as error:  # a sentence for the visitor, the details for whoever runs the server
            logging.getLogger(__name__).exception("a run failed")
            yield {"event": "error", "message": f"the server failed at this: {type(error).__name__}"}


async def lines(source: Events) -> AsyncGenerator[bytes]:
    """Yield events as lines of JSON."""
    async with aclosing(source):
        async for event in source:
            yield as_json(event).encode() + b"\n"
