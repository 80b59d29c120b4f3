"""A draft that is trained while it serves: what changes, when, how long it takes, and what stays as it was."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import islice

import pytest
import torch
from support.interruptions import lines_of
from support.tiny_models import tiny_llama
from support.tiny_pair import tiny_pair

from cactus_decoding import Request, generate, load_pair, stream
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.generation.pair import Pair
from cactus_decoding.models.cached import CachedModel
from cactus_decoding.training import adaptation as adaptation_module
from cactus_decoding.training.acceptance.data import TokenSequence
from cactus_decoding.training.acceptance.row_cache import likeliest
from cactus_decoding.training.adaptation import DraftAdaptation
from cactus_decoding.training.adapted_folder import Text
from cactus_decoding.zoo.word_problems import word_problems

PROMPTS = [each.prompt for each in islice(word_problems("train"), 60)]
SLOW_SECONDS = 100.0
"""As if a response had taken so long: there is time for any step."""


def weights_of(pair: Pair) -> torch.Tensor:
    return torch.cat([each.detach().flatten().clone() for each in pair.drafter.model.parameters()])


def answer(adaptation: DraftAdaptation, prompt: str, **settings) -> list[int]:
    response = stream(adaptation.pair, prompt, **settings)
    for _ in adaptation.watch(response):
        pass
    return response.token_ids


def test_the_draft_changes_after_a_response_and_never_within_one() -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=1.0)
    before, seen = weights_of(adaptation.pair), []
    for _ in adaptation.watch(stream(adaptation.pair, PROMPTS[0], seed=0)):
        seen.append(torch.equal(weights_of(adaptation.pair), before))
    assert len(seen) > 5
    assert all(seen)
    assert adaptation.steps == 1
    assert not torch.equal(weights_of(adaptation.pair), before)


def test_a_response_that_is_left_is_not_learned_from() -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=1.0)
    before = weights_of(adaptation.pair)
    watched = adaptation.watch(stream(adaptation.pair, PROMPTS[0], seed=0))
    next(watched)
    watched.close()
    assert adaptation.steps == 0
    assert torch.equal(weights_of(adaptation.pair), before)


def test_every_proposal_is_drawn_from_the_row_it_is_judged_by() -> None:
    # which is all that the law of a response asks of a draft; a draft whose cache is older than its weights fails
    adaptation = DraftAdaptation(load_pair(), max_time_share=1.0, learning_rate=1e-3)
    answer(adaptation, PROMPTS[0], seed=0)
    pair = adaptation.pair
    response = stream(pair, PROMPTS[1], seed=1)
    text = list(response.prompt_token_ids)
    for outcome in islice(response, 3):
        with torch.no_grad():
            logits = pair.drafter.model(torch.tensor([[*text, *outcome.proposal.token_ids]])).logits[0]
        rows = logits[len(text) - 1 : len(text) - 1 + outcome.num_drafted].softmax(-1)
        assert outcome.proposal.probs is not None
        assert (outcome.proposal.probs - rows).abs().max() < 1e-4
        text += outcome.token_ids


def test_at_temperature_0_nothing_that_is_said_changes() -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=1.0)
    plain = [generate(load_pair(), prompt, temperature=0.0).token_ids for prompt in PROMPTS[:4]]
    assert [answer(adaptation, prompt, temperature=0.0) for prompt in PROMPTS[:4]] == plain
    assert adaptation.steps == 4


def test_the_rows_are_the_targets_at_each_emitted_token() -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=0.0)
    token_ids = answer(adaptation, PROMPTS[0], seed=0)
    (text,) = adaptation._replay.texts
    sequence, start = text.sequence
    assert sequence[start:] == token_ids
    with torch.no_grad():
        logits = adaptation.pair.target.model(torch.tensor([sequence])).logits[0, start - 1 : -1]
    ids, log_probs = likeliest(logits)
    assert (text.top_log_probs - log_probs).abs().max() < 1e-3
    assert (text.top_ids[:, 0] == ids[:, 0]).all()
    # and they say something about what was emitted, which the rows a place later do not
    assert (text.top_ids == torch.tensor(token_ids)[:, None]).any(-1).float().mean() > 0.98
    assert (text.top_ids[1:] == torch.tensor(token_ids)[:-1, None]).any(-1).float().mean() < 0.9


def text_of(tokens: int) -> Text:
    nothing = torch.zeros(tokens - 1, 1)
    return Text(TokenSequence([1] * tokens, 1), nothing.long(), nothing)


def test_steps_take_no_more_than_their_share_of_the_time(monkeypatch) -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=0.1, batch=8)
    spent: list[int] = []
    clock = [0.0]
    monkeypatch.setattr("cactus_decoding.training.adaptation.time.perf_counter", lambda: clock[0])

    def step(texts: list[Text]) -> None:
        spent.append(sum(len(each.sequence.token_ids) for each in texts))
        clock[0] += 0.001 * spent[-1]

    monkeypatch.setattr(adaptation, "_step", step)
    first_steps = []
    for _ in range(50):
        first_steps.append(adaptation.learn(text_of(100), 0.7))
        # the first step's time is not known before it; every other one keeps within what is left
        assert adaptation.seconds <= max(0.1 * adaptation.response_seconds, 0.1 + 1e-9)
    assert first_steps[0]
    assert not first_steps[1], "what the first step took beyond its share must be made up for"
    assert adaptation.seconds > 0.08 * adaptation.response_seconds


def signalled(run: Callable[[], object], strike: int = 0) -> int:
    """Run something, press Ctrl-C at the given one of the lines of adaptation that it passes; return how many."""
    files = (adaptation_module.__file__,)
    return lines_of(run, files, strike, lambda: signal.raise_signal(signal.SIGINT))


def about_to_step(pair: Pair, start: list[torch.Tensor]) -> DraftAdaptation:
    """Return an adaptation that has taken a step from the same weights, and whose drafter has something cached."""
    with torch.no_grad():
        for each, value in zip(pair.drafter.model.parameters(), start, strict=True):
            each.copy_(value)
    adaptation = DraftAdaptation(pair, max_time_share=1.0, learning_rate=1e-2)
    adaptation.learn(text_of(6), SLOW_SECONDS)
    generate(pair, "Tom has", seed=0, max_new_tokens=4)
    return adaptation


def masters_of(adaptation: DraftAdaptation) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in adaptation._precise])


@pytest.mark.slow
def test_ctrl_c_at_any_line_of_a_step_leaves_it_taken_or_not_and_never_a_part_of_it() -> None:
    pair = tiny_pair()
    start = [each.detach().clone() for each in pair.drafter.model.parameters()]
    adaptation = about_to_step(pair, start)
    before, text, whole = weights_of(pair), text_of(8), 0
    total = signalled(lambda: adaptation.learn(text, SLOW_SECONDS))
    after = weights_of(pair)
    assert not torch.equal(before, after)
    assert pair.drafter.model_cache.length == 0
    for strike in range(1, total + 1):
        adaptation = about_to_step(pair, start)
        with pytest.raises(KeyboardInterrupt):
            signalled(lambda each=adaptation: each.learn(text, SLOW_SECONDS), strike)
        taken = adaptation.steps == 2
        whole += taken
        found, where = weights_of(pair), f"at line {strike} of {total}"
        assert torch.equal(found, after if taken else before), where
        assert torch.equal(masters_of(adaptation), found), where
        assert (pair.drafter.model_cache.length == 0) == taken, where
    assert 0 < whole < total


def test_a_step_that_fails_half_way_changes_nothing() -> None:
    pair = tiny_pair()
    adaptation = about_to_step(pair, [each.detach().clone() for each in pair.drafter.model.parameters()])
    before = weights_of(pair)

    def without_memory() -> None:
        with torch.no_grad():
            adaptation._precise[0].add_(1.0)
        raise torch.OutOfMemoryError

    adaptation._optimizer.step, step = without_memory, adaptation._optimizer.step
    with pytest.raises(torch.OutOfMemoryError):
        adaptation.learn(text_of(8), SLOW_SECONDS)
    assert torch.equal(weights_of(pair), before)
    assert torch.equal(masters_of(adaptation), before)
    adaptation._optimizer.step = step
    assert adaptation.learn(text_of(8), SLOW_SECONDS)
    assert adaptation.steps == 2


def test_the_rows_of_a_step_take_no_more_than_their_share_of_memory() -> None:
    pair, most = tiny_pair(), 4 * 1003 * 20  # 20 positions
    adaptation = DraftAdaptation(pair, max_time_share=1.0, max_row_bytes=most)
    seen: list[tuple[int, ...]] = []
    pair.drafter.model.lm_head.register_forward_hook(lambda module, given, logits: seen.append(tuple(logits.shape)))
    for length in (6, 7, 40, 8, 5, 9):
        assert adaptation.learn(text_of(length), SLOW_SECONDS)
    assert [texts * tokens * vocabulary * 4 <= most for texts, tokens, vocabulary in seen] == [True] * 6
    assert seen[2][:2] == (1, 20), "one that alone is too long is cut"
    assert seen[1][:2] == (2, 7)


def test_no_text_is_longer_than_the_drafts_context_window() -> None:
    pair = tiny_pair()
    assert pair.drafter.max_length == 256
    adaptation = DraftAdaptation(pair, max_time_share=1.0)
    adaptation.learn(text_of(300), SLOW_SECONDS)
    assert len(adaptation._replay.texts[0].sequence.token_ids) == 256


def test_no_time_means_no_step() -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=0.0)
    assert not adaptation.learn(text_of(10), SLOW_SECONDS)
    assert adaptation.steps == 0


def test_a_loss_that_is_no_number_changes_nothing(monkeypatch) -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=1.0)
    before = weights_of(adaptation.pair)
    monkeypatch.setattr(adaptation, "_loss", lambda rows: rows.kl * float("nan"))
    answer(adaptation, PROMPTS[0], seed=0)
    assert torch.equal(weights_of(adaptation.pair), before)


def test_the_same_responses_make_the_same_draft_and_a_bfloat16_draft_learns_too() -> None:
    made = []
    for _ in range(2):
        adaptation = DraftAdaptation(load_pair(dtype=torch.bfloat16), max_time_share=1.0)
        before = weights_of(adaptation.pair)
        for number in range(3):
            token_ids = adaptation.pair.tokenizer(PROMPTS[number]).input_ids
            sequence = TokenSequence([*token_ids, 5, 6, 7], len(token_ids))
            text = Text(sequence, torch.tensor([[5], [6], [7]]), torch.zeros(3, 1))
            assert adaptation.learn(text, SLOW_SECONDS)
        made.append(weights_of(adaptation.pair))
        assert not torch.equal(made[-1], before)
    assert torch.equal(*made)


def test_what_cannot_adapt_is_refused() -> None:
    with pytest.raises(ValueError, match="a model of transformers, but this one is a NgramDrafter"):
        DraftAdaptation(load_pair("bundled", "ngram"))
    settings = ("learning_rate", 0.0), ("max_time_share", 1.5), ("replay", 0), ("batch", 0), ("max_row_bytes", 0)
    for name, value in settings:
        with pytest.raises(ValueError, match=f"{name} must be"):
            DraftAdaptation(load_pair(), **{name: value})
    with pytest.raises(ValueError, match="did you mean"):
        DraftAdaptation(load_pair(), loss="lkk")


def test_a_draft_learns_what_its_target_says() -> None:
    tokenizer = load_pair().tokenizer
    target, draft = (tiny_llama(seed, 1003, positions=256).float() for seed in (0, 1))
    pair = Pair(CachedModel(target), ModelDrafter(draft, 1003), tokenizer)
    adaptation = DraftAdaptation(pair, max_time_share=1.0, learning_rate=3e-3)
    lengths = []
    for seed in range(40):
        response = stream(pair, "Question:", Request(seed=seed, max_new_tokens=40))
        for _ in adaptation.watch(response):
            pass
        adaptation.response_seconds += SLOW_SECONDS  # a step after each, however slow the machine is
        lengths.append(response.metrics.acceptance_length)
    assert sum(lengths[-10:]) > sum(lengths[:10])
