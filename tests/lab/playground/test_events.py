"""A run as a stream of events: one generation at a time, stopped by its visitor or by their leaving."""

from __future__ import annotations

from support.playground_server import asked


def test_one_generation_at_a_time_and_a_stop_ends_it(server):
    with server.held() as gate, server.following(asked("lossless", max_new_tokens=200)) as first:
        started = next(first)
        gate.release()
        assert next(first)["event"] == "step"
        with server.following(asked("cactus:delta=1.0", max_new_tokens=8)) as second:
            assert next(second) == {"event": "queued", "ahead": 1}
            assert server.post(f"/api/runs/{started['run']}/stop", {}) == (200, {})
            gate.release(100)
            rest = list(first)
            (end,) = [event for event in rest if event["event"] == "ended"]
            assert end["finish_reason"] == "stopped"
            assert len([event for event in rest if event["event"] == "step"]) <= 1
            events = list(second)
            assert events[0]["event"] == "started"
            assert events[-1]["event"] == "finished"


def test_whoever_leaves_frees_the_seat(server):
    with server.held() as gate:
        with server.following(asked("lossless", max_new_tokens=200)) as first:
            assert next(first)["event"] == "started"
            with server.following(asked(max_new_tokens=8)) as waiting:  # leaves while it waits
                assert next(waiting) == {"event": "queued", "ahead": 1}
        with server.following(asked("lossless", max_new_tokens=8)) as third:
            gate.release(1)  # the first one's step ends, and it finds that nobody listens
            seen = [next(third)]
            gate.release(100)
            seen += list(third)
    assert next(event["event"] for event in seen if event["event"] != "queued") == "started"
    assert seen[-1]["event"] == "finished"
