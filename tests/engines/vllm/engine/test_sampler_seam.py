"""The seam itself: requests without a rule are stock to the last bit, logits come back unchanged, budgets hold."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm
from stock_sampler import CPU, Cut, admit, metadata, params, prepare, processors, run, sample, spent
from support.decisions import afforded_in_turn
from support.tables import all_of
from vllm.v1.sample import rejection_sampler
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessors, MoveDirectionality
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from cactus_decoding.core.audit import audit
from cactus_decoding.core.rules import parse_rule
from cactus_decoding.engines.vllm.patches import closest_version, differences, stock_of
from cactus_decoding.engines.vllm.v1 import batch_rules

prepare()

pytestmark = pytest.mark.smoke
REQUESTS, DRAFTED, VOCABULARY = 64, 3, 17


def step_rows(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(REQUESTS, DRAFTED + 1, VOCABULARY, generator=generator) * 2
    probs = torch.randn(REQUESTS, DRAFTED, VOCABULARY, generator=generator).softmax(-1)
    drafted = torch.multinomial(probs.view(-1, VOCABULARY), 1, generator=generator).view(REQUESTS, DRAFTED)
    return logits, probs, drafted


def seeds() -> dict[int, torch.Generator]:
    return {index: torch.Generator().manual_seed(index) for index in range(REQUESTS)}


@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_requests_without_a_rule_are_stock_to_the_last_bit(one_hot: bool) -> None:
    logits, probs, drafted = step_rows()
    cuts = [Cut(temperature=0.0 if index % 5 == 0 else 0.8, top_k=9) for index in range(REQUESTS)]
    draft = None if one_hot else probs
    processors()  # has the seam installed
    relaxed_sample = rejection_sampler.rejection_sample
    rejection_sampler.rejection_sample = stock_of(rejection_sampler, "rejection_sample")
    try:
        expected = sample(logits.clone(), draft, drafted, metadata(LogitsProcessors(), cuts, seeds()))
    finally:
        rejection_sampler.rejection_sample = relaxed_sample
    logitsprocs = processors()
    rules = [None, "clamped:width=2", "cactus:delta=3"]
    admit(logitsprocs, [params(rules[index % 3], cuts[index].temperature) for index in range(REQUESTS)])
    given = sample(logits.clone(), draft, drafted, metadata(logitsprocs, cuts, seeds()))
    stock = torch.tensor([index % 3 == 0 or index % 5 == 0 for index in range(REQUESTS)])
    assert torch.equal(given[stock], expected[stock])
    assert not torch.equal(given[~stock], expected[~stock])


def test_a_step_without_proposals_gives_the_stock_tokens_and_recovers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, _, drafted = step_rows()
    cuts = [Cut(temperature=0.0 if index % 5 == 0 else 0.8) for index in range(REQUESTS)]
    logitsprocs, recovered, stock = processors(), list[int](), rejection_sampler.sample_recovered_tokens
    admit(logitsprocs, [params("clamped:width=2", cuts[index].temperature) for index in range(REQUESTS)])

    def recording(*given: object) -> torch.Tensor:
        tokens = stock(*given)
        recovered.append(len(tokens))
        return tokens

    monkeypatch.setattr(rejection_sampler, "sample_recovered_tokens", recording)

    def sampled() -> torch.Tensor:
        return sample(logits[:, :1].clone(), None, drafted[:, :0], metadata(logitsprocs, cuts, seeds()))

    given = sampled()
    assert recovered == []
    monkeypatch.setattr(rejection_sampler, "rejection_sample", stock_of(rejection_sampler, "rejection_sample"))
    expected = sampled()
    assert recovered == [0]  # for which vLLM drew noise as large as the vocabulary
    assert torch.equal(given, expected)
    assert given.dtype == expected.dtype


@all_of("rule", ["cactus:delta=0", "ensemble:weight=0", "lenience:lenience=1", "clamped:width=0"])
@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
def test_a_rule_at_its_lossless_end_gives_the_stock_tokens(rule: str, one_hot: bool) -> None:
    logits, probs, drafted = step_rows()
    cuts, draft = [Cut(0.9)] * REQUESTS, None if one_hot else probs
    expected = sample(logits.clone(), draft, drafted, metadata(LogitsProcessors(), cuts, seeds()))
    logitsprocs = processors()
    admit(logitsprocs, [params(rule)] * REQUESTS)
    assert torch.equal(sample(logits.clone(), draft, drafted, metadata(logitsprocs, cuts, seeds())), expected)


@pytest.mark.parametrize("all_greedy", [True, False])
@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
@all_of("rule", ["relaxed_greedy:margin=1.5", "relaxed_greedy:margin=0.8,per=remaining", "mars:ratio=0.5,logits=raw"])
def test_greedy_requests_follow_their_rule_whatever_is_asked_beside_them(
    rule: str, one_hot: bool, all_greedy: bool
) -> None:
    """Of every four requests one has the rule, one has none at temperature 0, and two sample unless all are greedy."""
    logits, probs, _ = step_rows()
    likely = logits[:, :DRAFTED].softmax(-1).view(-1, VOCABULARY)
    drafted = torch.multinomial(likely, 1, generator=torch.Generator().manual_seed(1)).view(REQUESTS, DRAFTED)
    cuts = [Cut(0.0 if all_greedy or index % 4 < 2 else 0.8, 0 if index % 4 < 2 else 9) for index in range(REQUESTS)]
    draft, asked = None if one_hot else probs, [rule, None, "clamped:width=2", None]
    expected = sample(logits.clone(), draft, drafted, metadata(LogitsProcessors(), cuts, seeds()))
    logitsprocs = processors()
    admit(
        logitsprocs,
        [
            params(None if all_greedy and index % 4 == 2 else asked[index % 4], cuts[index].temperature)
            for index in range(REQUESTS)
        ],
    )
    given, relaxed = sample(logits.clone(), draft, drafted, metadata(logitsprocs, cuts, seeds())), 0
    stock = torch.tensor([index % 4 in (1, 3) or (all_greedy and index % 4 == 2) for index in range(REQUESTS)])
    assert torch.equal(given[stock], expected[stock])
    for request in range(0, REQUESTS, 4):
        emitted = []
        for place, (row, token) in enumerate(zip(logits[request], drafted[request].tolist(), strict=False)):
            bound = parse_rule(rule).bind_position(DRAFTED - place, row.max().item())
            kept = bound.accepts(row.softmax(-1), torch.tensor([token])).item()
            relaxed += kept and token != row.argmax()
            emitted.append(token if kept else int(row.argmax()))
            if not kept:
                break
        else:
            emitted.append(int(logits[request, DRAFTED].argmax()))
        assert [token for token in given[request].tolist() if token >= 0] == emitted
    assert relaxed


@pytest.mark.parametrize("rule", ["cactus:delta=3", "clamped:width=2"])
def test_log_probabilities_are_the_target_s(rule: str) -> None:
    logits, probs, drafted = step_rows()
    logitsprocs = processors()
    admit(logitsprocs, [params(rule)] * REQUESTS)
    sampling = metadata(logitsprocs, [Cut()] * REQUESTS, seeds(), max_num_logprobs=2)
    output = run(logits.clone(), probs, drafted, sampling)
    tokens, logprobs = output.sampled_token_ids, output.logprobs_tensors
    reported = logprobs.logprobs[:, 0].view(REQUESTS, DRAFTED + 1)
    emitted = tokens >= 0
    own = logits.log_softmax(-1).gather(-1, tokens.clamp(min=0).long().unsqueeze(-1)).squeeze(-1)
    assert torch.allclose(reported[emitted], own[emitted], atol=1e-5)


@pytest.mark.parametrize("one_hot", [True, False], ids=["one_hot", "probabilistic"])
@pytest.mark.parametrize("rule", ["cactus:delta=1", "clamped:width=2", "ensemble:weight=0.7"])
def test_no_budget_is_overspent_and_what_is_spent_is_what_was_visited(rule: str, one_hot: bool) -> None:
    budget = 0.7
    logitsprocs = processors()
    admit(logitsprocs, [params(rule, budget=budget) for _ in range(REQUESTS)])  # a meter each
    sampling = metadata(logitsprocs, [Cut()] * REQUESTS)
    expected = torch.zeros(REQUESTS, dtype=torch.float64)
    torch.manual_seed(2)
    for step in range(12):
        logits, probs, drafted = step_rows(step)
        target = logits[:, :-1].double().softmax(-1)
        if one_hot:
            costs = audit(rule, target, draft_token_ids=drafted).kl
        else:
            costs = audit(rule, target, probs.double() / probs.double().sum(-1, keepdim=True)).kl
        tokens = sample(logits, None if one_hot else probs, drafted, sampling)
        pairs = zip(costs.clamp(min=0).tolist(), expected.tolist(), strict=True)
        admitted = torch.tensor([afforded_in_turn(nats, budget, before) for nats, before in pairs])
        visited = torch.arange(DRAFTED) < (tokens >= 0).sum(1, keepdim=True)
        expected += torch.where(admitted & visited, costs, 0.0).sum(1)
        assert torch.allclose(spent(sampling), expected, atol=1e-5)
        assert (spent(sampling) <= budget).all()
    assert (expected > 0.5 * budget).any()  # it comes into play


def test_a_request_that_vllm_pauses_goes_on_with_what_it_had_spent() -> None:
    rules = batch_rules(metadata(processors(), [Cut()]))
    metered = params("cactus:delta=1", budget=1.0)

    def spent_after(**changes: list) -> float:
        rules.update_state(BatchUpdate(1, **({"removed": [], "added": [], "moved": []} | changes)))
        return rules.meter.spent[rules.requests[0].meter_slot].item()

    assert spent_after(added=[(0, metered, [1], [])]) == 0
    rules.meter.spent[rules.requests[0].meter_slot] = 0.9
    rules.update_state(BatchUpdate(1, removed=[0], added=[], moved=[]))
    assert spent_after(added=[(0, metered, [1], [5])]) == pytest.approx(0.9)
    begun = params("cactus:delta=1", budget=1.0)  # of which nobody knows what it has spent
    assert spent_after(added=[(0, begun, [1], [5])]) == float("inf")


def test_rules_follow_their_requests_through_the_batch() -> None:
    logitsprocs = processors()
    rules = batch_rules(metadata(logitsprocs, [Cut()]))
    admit(logitsprocs, [params(rule) for rule in ("cactus:delta=1", None, "lenience:lenience=0.5")])
    moves = [(2, 0, MoveDirectionality.UNIDIRECTIONAL)]
    rules.update_state(BatchUpdate(2, removed=[0], added=[], moved=moves))
    assert {index: entry.rule.name for index, entry in rules.requests.items()} == {0: "lenience"}
    drafted = torch.tensor([5, 6, 7])
    assert rules.layout([2, 1], 2, drafted).groups[0].rows.tolist() == [0, 1]
    assert rules.layout([0, 1], 2, drafted) is None


def test_a_bad_value_in_a_worker_is_lossless_and_does_not_raise(caplog: pytest.LogCaptureFixture) -> None:
    rules = batch_rules(metadata(processors(), [Cut()]))
    assert rules.admit(params("cactus:delta=x"), begun=False) is None
    assert rules.admit(params("cactus:delta=1", budget="much"), begun=False) is None
    assert rules.admit(params("cactus:delta=1", temperature=0.0), begun=False) is None


def test_a_default_that_the_server_cannot_follow_is_refused() -> None:
    with pytest.raises(ValueError, match="does not work in vLLM"):
        processors({"acceptance_rule": "typical"})


def test_this_vllm_is_as_it_was_recorded() -> None:
    found = closest_version(vllm.__version__)
    assert vllm.__version__.startswith(found)
    assert differences(Path(vllm.__file__).parent, found) == []


def test_without_anything_asked_for_no_row_is_held_back() -> None:
    logitsprocs = processors(words=("<a>", " 3", "x"))
    admit(logitsprocs, [params("clamped:width=1"), params(None), params("cactus:delta=0.5", budget=1.0)])
    rules = batch_rules(metadata(logitsprocs, [Cut()] * 3))
    layout = rules.layout([2, 2, 2], 2, None)  # what was drafted is not looked at
    assert (layout.protected, layout.relaxable, rules.reads_tokens) == ([], None, False)
    assert rules.requests[0].threshold == float("inf")


WORDS = ("<a>", "</a>", " 3", "x", "y", "z")
MARKED = {"relax_within": ["<a>", "</a>"]}


def request(name: str, prompt: list[int], output: list[int] | None = None, **policy: object) -> CachedRequestState:
    return CachedRequestState(
        req_id=name,
        prompt_token_ids=prompt,
        mm_features=[],
        sampling_params=params("cactus:delta=1", **policy),
        generator=None,
        block_ids=([0],),
        num_computed_tokens=0,
        output_token_ids=[] if output is None else output,
    )


@pytest.fixture
def batch() -> InputBatch:
    return InputBatch(4, 64, 64, CPU, len(WORDS), [16], [4], logitsprocs=processors(words=WORDS, max_num_seqs=4))


def relaxable(batch: InputBatch, *drafted: list[int]) -> list[bool] | None:
    """Return which positions of a step may be relaxed, in the order of the batch; None for all."""
    counts, flat = [len(own) for own in drafted], [token for own in drafted for token in own]
    layout = batch_rules(batch).layout(counts, max(counts), torch.tensor(flat))
    assert layout is not None
    return None if layout.relaxable is None else layout.relaxable.tolist()


def test_phases_follow_their_requests_as_tokens_come_and_the_batch_moves(batch: InputBatch) -> None:
    late, marked, plain = (
        request("late", [3], lossless_tokens=3),
        request("marked", [0], **MARKED),
        request("plain", [3]),
    )
    for one in (late, marked, plain):
        batch.add_request(one)
    batch.refresh_metadata()
    assert relaxable(batch, [3, 3], [3, 1, 3], [3]) == [False, False, True, True, False, True]
    late.output_token_ids += [3, 3]  # as the runner does after a step
    marked.output_token_ids += [1]
    assert relaxable(batch, [3, 3], [3, 0, 3], [3]) == [False, True, False, False, True, True]
    batch.remove_request("late")
    batch.condense()
    batch.refresh_metadata()
    assert batch.req_ids == ["plain", "marked"]
    assert relaxable(batch, [3], [0, 3]) == [True, False, True]
    late.output_token_ids += [3]
    batch.add_request(late)  # it is back, with what it had
    batch.refresh_metadata()
    assert relaxable(batch, [3], [0, 3], [3, 3]) == [True, False, True, True, True]
    batch.remove_request("marked")
    batch.condense()
    batch.refresh_metadata()
    assert relaxable(batch, [3], [3, 3]) is None  # nothing is left to ask for


def test_a_place_that_another_request_takes_begins_anew(batch: InputBatch) -> None:
    batch.add_request(request("one", [0], [3, 3], **MARKED))
    batch.refresh_metadata()
    assert relaxable(batch, [3]) == [True]
    batch.remove_request("one")
    batch.add_request(request("other", [3], **MARKED))
    batch.refresh_metadata()
    assert relaxable(batch, [3]) == [False]


def test_where_vllm_schedules_ahead_the_tokens_are_there_before_they_are_read(batch: InputBatch) -> None:
    one, other = request("one", [3], **MARKED), request("other", [3])
    for each in (one, other):
        batch.add_request(each)
    batch.refresh_metadata()
    assert batch.sampling_metadata.output_token_ids  # vLLM looks at it to know whether somebody needs them
    one.output_token_ids += [-1, -1, -1]  # placeholders, of which there may be too many
    assert relaxable(batch, [3, 3], [3]) == [False, False, True]  # unknown, and so lossless
    batch.prev_req_id_to_index = {"one": 0, "other": 1}
    sampled, ready = torch.tensor([[3, 0, -1], [3, -1, -1]]), SimpleNamespace(synchronize=lambda: None)
    batch.set_async_sampled_token_ids(sampled, ready)
    batch.update_async_output_token_ids()
    assert one.output_token_ids == [3, 0]
    assert relaxable(batch, [3, 3], [3]) == [True, True, True]
    batch.remove_request("one")
    batch.condense()
    batch.refresh_metadata()
    assert not batch.sampling_metadata.output_token_ids  # nobody waits for tokens any more
