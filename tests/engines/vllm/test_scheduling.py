"""How many proposals the scheduler leaves a request, and how many it lets the draft make."""

from types import SimpleNamespace

import pytest
from support.tables import all_of

from cactus_decoding.engines.vllm.scheduling import (
    FORBIDDEN,
    proposals_of,
    with_fewer_proposals,
    with_forbidden_masked,
    with_rejected_proposals,
)

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


FULL, PIECEWISE = (SimpleNamespace(has_full_cudagraphs=lambda full=full: full) for full in (True, False))


def server(method: str = "draft_model", parallel: bool = False, workers: int = 1, graphs: object = None,
           by_batch: object = None) -> SimpleNamespace:  # fmt: skip
    """Return what a scheduler reads of its server's configuration."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            method=method, parallel_drafting=parallel, num_speculative_tokens_per_batch_size=by_batch
        ),
        parallel_config=SimpleNamespace(data_parallel_size=workers),
        compilation_config=SimpleNamespace(cudagraph_mode=graphs),
    )


def scheduled(
    requests: list[SimpleNamespace], most: int = MOST, v2: bool = False, config: SimpleNamespace | None = None
) -> SimpleNamespace:
    """Return what a scheduler of these running requests puts out, by a stock one that schedules all they have."""
    names = [str(place) for place in range(len(requests))]
    scheduler = SimpleNamespace(
        num_spec_tokens=most,
        running=requests,
        requests=dict(zip(names, requests, strict=True)),
        use_v2_model_runner=v2,
        vllm_config=config or server(),
        dynamic_sd_lookup=None,
        max_num_running_reqs=8,
    )

    def stock(scheduler: SimpleNamespace, throttle_prefills: bool = False) -> SimpleNamespace:
        assert throttle_prefills
        assert scheduler.dynamic_sd_lookup == (None if v2 or not most else [most] * 9), "or first steps are filled"
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


@all_of(
    "config, fewer",
    [
        (server(), True),
        (server("ngram"), True),
        (server("eagle3"), True),
        (server("mtp"), True),
        (server("suffix"), False),  # these insist on the server's number
        (server("medusa"), False),
        (server("ngram_gpu"), False),
        (server("extract_hidden_states"), False),
        (server("dflash"), False),
        (server(parallel=True), False),
        (server(workers=2), False),
        (server(graphs=FULL), False),
        (server(graphs=PIECEWISE), True),
        (server(graphs=FULL, by_batch=[[1, 8, 3]]), True),  # vLLM itself changes the number then
    ],
)
def test_only_a_draft_that_can_makes_fewer(config: SimpleNamespace, fewer: bool) -> None:
    requests = [request({"num_speculative_tokens": 1})]
    output = scheduled(requests, config=config)
    assert output.num_spec_tokens_to_schedule == (1 if fewer else MOST)
    assert requests[0].spec_token_ids == [7], "what is verified are fewer all the same"


def constrained(valid: int, structured: bool = True, prefills: bool = False) -> SimpleNamespace:
    """Return a request after the draft proposed 7, 5, 9, of which its grammar allows the first ``valid``."""
    one = SimpleNamespace(use_structured_output=structured, is_prefill_chunk=prefills, is_finished=lambda: False)

    def stock(scheduler: SimpleNamespace, drafts: SimpleNamespace) -> None:
        one.spec_token_ids = [] if prefills else [7, 5, 9][:valid]

    drafts = SimpleNamespace(req_ids=["a", "gone"], draft_token_ids=[[7, 5, 9], [1, 1, 1]])
    with_rejected_proposals(stock)(SimpleNamespace(requests={"a": one}), drafts)
    return one


@all_of(
    "one, proposals, place",
    [
        (constrained(3), [7, 5, 9], None),
        (constrained(1), [7, 5], 1),
        (constrained(0), [7], 0),
        (constrained(0, prefills=True), [], None),
    ],
)
def test_the_first_forbidden_proposal_stays_to_be_rejected(
    one: SimpleNamespace, proposals: list[int], place: int | None
) -> None:
    assert one.spec_token_ids == proposals
    assert getattr(one, FORBIDDEN) == place
    seen = {}
    with_forbidden_masked(lambda manager, requests, names, shown: seen.update(shown))(
        None, {"a": one}, ["a"], {"a": proposals, "free": [3, 3]}
    )
    allowed = proposals if place is None else [*proposals[:place], -1]
    assert seen == {"a": allowed, "free": [3, 3]}


def test_requests_without_a_grammar_are_left_alone() -> None:
    assert not hasattr(constrained(3, structured=False), FORBIDDEN)
