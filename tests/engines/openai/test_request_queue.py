"""Whose turn it is."""

import anyio
import pytest
from support.playground_server import asked, running

from cactus_decoding.engines.openai.serving import RequestQueue
from cactus_decoding.lab.playground.form import FormLimits


def test_everyone_in_the_queue_knows_their_place():
    async def wait_in_a_queue():
        queue, seen = RequestQueue(2), []
        first, second, third = queue.join(), queue.join(), queue.join()
        with pytest.raises(ValueError, match="2 others are waiting"):
            queue.check_open()

        async def wait(place, name):
            with place:
                async for ahead in place.ahead():
                    seen.append((name, ahead))
                seen.append((name, 0))
                await anyio.wait_all_tasks_blocked()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, second, "second")
            tasks.start_soon(wait, third, "third")
            await anyio.wait_all_tasks_blocked()
            with first:
                pass
        return seen

    seen = anyio.run(wait_in_a_queue)
    assert [ahead for name, ahead in seen if name == "second"] == [1, 0]
    assert [ahead for name, ahead in seen if name == "third"] == [2, 1, 0]


def test_so_many_as_there_are_seats_need_not_wait():
    async def wait_in_a_queue():
        queue, seen = RequestQueue(1, seats=2), []
        places = [queue.join() for _ in range(2)]
        queue.check_open()
        places.append(queue.join())
        with pytest.raises(ValueError, match="1 others are waiting"):
            queue.check_open()
        assert [[ahead async for ahead in place.ahead()] for place in places[:2]] == [[], []]

        async def wait(place):
            async for ahead in place.ahead():
                seen.append(ahead)
            seen.append(0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, places[2])
            await anyio.wait_all_tasks_blocked()
            assert seen == [1]
            with places[1]:  # leaves first
                pass
        return seen

    assert anyio.run(wait_in_a_queue) == [1, 0]


def test_a_full_queue_turns_visitors_away():
    with running(FormLimits(waiting=1)) as server, server.held(), server.following(asked()) as first:
        assert next(first)["event"] == "started"
        with server.following(asked()) as second:
            assert next(second)["event"] == "queued"
            status, answer = server.post("/api/runs", asked())
            assert status == 503
            assert "1 others are waiting" in answer["message"]
