"""Whose turn it is."""

import anyio
import pytest
from support.playground_server import asked, running

from cactus_decoding.engines.openai.serving import RequestQueue
from cactus_decoding.lab.playground.form import FormLimits


async def heard(leaving, *waiting):
    """Return how many are before those who wait, as each is told, while another one leaves."""
    seen = [[] for _ in waiting]

    async def wait(place, told):
        with place:
            async for ahead in place.ahead():
                told.append(ahead)
            told.append(0)
            await anyio.wait_all_tasks_blocked()

    async with anyio.create_task_group() as tasks:
        for place, told in zip(waiting, seen, strict=True):
            tasks.start_soon(wait, place, told)
        await anyio.wait_all_tasks_blocked()
        with leaving:
            pass
    return seen


def test_everyone_in_the_queue_knows_their_place():
    queue = RequestQueue(2)
    first, second, third = queue.join(), queue.join(), queue.join()
    with pytest.raises(ValueError, match="2 others are waiting"):
        queue.check_open()
    assert anyio.run(heard, first, second, third) == [[1, 0], [2, 1, 0]]


def test_so_many_as_there_are_seats_need_not_wait():
    async def wait_in_a_queue():
        queue = RequestQueue(1, seats=2)
        first, second = queue.join(), queue.join()
        queue.check_open()
        third = queue.join()
        with pytest.raises(ValueError, match="1 others are waiting"):
            queue.check_open()
        assert [[ahead async for ahead in place.ahead()] for place in (first, second)] == [[], []]
        return await heard(second, third)  # who leaves first

    assert anyio.run(wait_in_a_queue) == [[1, 0]]


def test_a_full_queue_turns_visitors_away():
    with running(FormLimits(waiting=1)) as server, server.held(), server.following(asked()) as first:
        assert next(first)["event"] == "started"
        with server.following(asked()) as second:
            assert next(second)["event"] == "queued"
            status, answer = server.post("/api/runs", asked())
            assert status == 503
            assert "1 others are waiting" in answer["message"]
