"""How many proposals the scheduler leaves a request, and how many it lets the draft make."""

from types import SimpleNamespace

import pytest
from support.tables import all_of

from cactus_decoding.engines.vllm.scheduling import proposals_of, with_fewer_proposals

MOST = 3


def request(asked: dict | None, proposals: int = MOST) -> SimpleNamespace:
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=asked), spec_token_ids=[7, 5, 9][:proposals])


@all_of(
    "asked, expected",
    [
        (None, MOST),
        ({}, MOST),
        ({"num_speculative_tokens": 0}, 0),
        ({"num_speculative_tokens": 2}, 2),
        ({"num_speculative_tokens": 9}, MOST),
        ({"num_speculative_tokens": -1}, MOST),
        ({"num_speculative_tokens": "2"}, MOST),
    ],
)
def test_a_request_s_number_is_at_most_the_server_s(asked: dict | None, expected: int) -> None:
    assert proposals_of(request(asked), MOST) == expected


def test_requests_for_embeddings_have_no_sampling() -> None:
    assert proposals_of(SimpleNamespace(sampling_params=None), MOST) == MOST


def scheduled(requests: list[SimpleNamespace], most: int = MOST, v2: bool = False) -> SimpleNamespace:
    """Return what a scheduler of these running requests puts out, by a stock one that schedules all they have."""
    names = [str(place) for place in range(len(requests))]
    scheduler = SimpleNamespace(
        num_spec_tokens=most,
        running=requests,
        requests=dict(zip(names, requests, strict=True)),
        use_v2_model_runner=v2,
    )

    def stock(scheduler: SimpleNamespace, throttle_prefills: bool = False) -> SimpleNamespace:
        assert throttle_prefills
        return SimpleNamespace(
            num_scheduled_tokens={name: 1 + len(scheduler.requests[name].spec_token_ids) for name in names},
            num_spec_tokens_to_schedule=most,
        )

    return with_fewer_proposals(stock)(scheduler, throttle_prefills=True)


def test_each_request_keeps_the_first_of_its_proposals_and_the_draft_makes_what_somebody_wants() -> None:
    requests = [request({"num_speculative_tokens": limit}) for limit in (0, 1, 2)]
    output = scheduled([*requests, request({"num_speculative_tokens": 1}, proposals=0)])
    assert [each.spec_token_ids for each in requests] == [[], [7], [7, 5]]
    assert list(output.num_scheduled_tokens.values()) == [1, 2, 3, 1]
    assert output.num_spec_tokens_to_schedule == 2
    assert scheduled([request({}), *requests]).num_spec_tokens_to_schedule == MOST
    assert scheduled([request({"num_speculative_tokens": 0})]).num_spec_tokens_to_schedule == 0


@pytest.mark.parametrize(("most", "v2", "expected"), [(0, False, 0), (MOST, True, MOST)])
def test_without_a_draft_and_in_the_v2_runner_the_number_stays(most: int, v2: bool, expected: int) -> None:
    assert scheduled([request({"num_speculative_tokens": 0}, 0)], most, v2).num_spec_tokens_to_schedule == expected


def test_a_step_of_nobody_is_left_alone() -> None:
    assert scheduled([]).num_spec_tokens_to_schedule == MOST
