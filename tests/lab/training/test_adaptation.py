"""A draft that is trained while it serves: what changes, when, how long it takes, and what stays as it was."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.interruptions import lines_of
from support.tiny_models import tiny_llama
from support.tiny_pair import tiny_pair

from cactus_decoding import Request, generate, load_pair, stream, zoo
from cactus_decoding.core.drafting.model import ModelDrafter
from cactus_decoding.core.models.loading import load_tokenizer
from cactus_decoding.core.pair import Pair
from cactus_decoding.engines.transformers.cached_model import CachedModel
from cactus_decoding.engines.transformers.loader import load_model
from cactus_decoding.lab.training import adaptation as adaptation_module
from cactus_decoding.lab.training.acceptance.data import TokenSequence
from cactus_decoding.lab.training.acceptance.row_cache import likeliest
from cactus_decoding.lab.training.adaptation import DraftAdaptation, ServedText
from cactus_decoding.zoo.word_problems import word_problems

PROMPTS = [each.prompt for each in islice(word_problems("train"), 60)]
SLOW_SECONDS = 100.0
"""As if a response had taken so long: there is time for any step."""
TARGET = str(zoo.path("target"))


def weights_of(pair: Pair) -> torch.Tensor:
    return torch.cat([each.detach().flatten().clone() for each in pair.drafter.model.parameters()])


def saved_weights(folder: Path) -> torch.Tensor:
    return weights_of(load_pair(draft=folder))


def recorded(folder: Path) -> dict:
    return json.loads((folder / "adaptation.json").read_text())


def answer(adaptation: DraftAdaptation, prompt: str, **settings) -> list[int]:
    response = stream(adaptation.pair, prompt, **settings)
    for _ in adaptation.watch(response):
        pass
    return response.token_ids


def test_the_draft_changes_after_a_response_and_never_within_one_or_after_one_that_is_left(monkeypatch) -> None:
    adaptation = DraftAdaptation(load_pair(), max_time_share=1.0)
    before, seen = weights_of(adaptation.pair), []
    watched = adaptation.watch(stream(adaptation.pair, PROMPTS[0], seed=0))
    next(watched)
    watched.close()
    assert adaptation.steps == 0
    with monkeypatch.context() as patch:  # nor after one whose loss is no number
        patch.setattr(adaptation, "_loss", lambda rows: rows.kl * float("nan"))
        answer(adaptation, PROMPTS[0], seed=0)
        assert torch.equal(weights_of(adaptation.pair), before)
    adaptation.steps = 0
    for _ in adaptation.watch(stream(adaptation.pair, PROMPTS[0], seed=0)):
        seen.append(torch.equal(weights_of(adaptation.pair), before))
    assert len(seen) > 5
    assert all(seen)
    assert adaptation.steps == 1
    assert not torch.equal(weights_of(adaptation.pair), before)


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
    adaptation.response_seconds = SLOW_SECONDS  # a step after each, however slow the machine is
    plain = [generate(load_pair(), prompt, temperature=0.0).token_ids for prompt in PROMPTS[:4]]
    assert [answer(adaptation, prompt, temperature=0.0) for prompt in PROMPTS[:4]] == plain
    assert adaptation.steps == 4


def test_the_rows_are_the_targets_at_each_emitted_token(monkeypatch) -> None:
    adaptation = DraftAdaptation(load_pair())
    learned: list[ServedText] = []
    monkeypatch.setattr(adaptation, "learn", lambda text, seconds: learned.append(text))
    token_ids = answer(adaptation, PROMPTS[0], seed=0)
    (text,) = learned
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


def text_of(tokens: int) -> ServedText:
    nothing = torch.zeros(tokens - 1, 1)
    return ServedText(TokenSequence([1] * tokens, 1), nothing.long(), nothing)


def of_a_clock(monkeypatch, seconds_per_token: float) -> None:
    """Have a step take so long by the clock that adaptations look at, and change nothing else."""
    clock = [0.0]
    monkeypatch.setattr("cactus_decoding.lab.training.adaptation.time.perf_counter", lambda: clock[0])

    def step(self: DraftAdaptation, text: ServedText) -> None:
        clock[0] += seconds_per_token * len(text.sequence.token_ids)
        self.steps += 1

    monkeypatch.setattr(DraftAdaptation, "_step", step)


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


@pytest.mark.slow
def test_ctrl_c_at_any_line_of_a_step_leaves_nothing_cached_of_other_weights() -> None:
    pair = tiny_pair()
    start = [each.detach().clone() for each in pair.drafter.model.parameters()]
    adaptation = about_to_step(pair, start)
    before, text, changed = weights_of(pair), text_of(8), 0
    total = signalled(lambda: adaptation.learn(text, SLOW_SECONDS))
    after = weights_of(pair)
    assert not torch.equal(before, after)
    for strike in range(1, total + 1):
        adaptation = about_to_step(pair, start)
        with pytest.raises(KeyboardInterrupt):
            signalled(lambda each=adaptation: each.learn(text, SLOW_SECONDS), strike)
        found, where = weights_of(pair), f"at line {strike} of {total}"
        assert any(torch.equal(found, each) for each in (before, after)), where
        if not torch.equal(found, before):
            changed += 1
            assert pair.drafter.model_cache.length == 0, where
    assert 0 < changed < total


def test_a_text_is_cut_to_its_share_of_memory_and_to_the_drafts_context_window() -> None:
    pair = tiny_pair()
    assert pair.drafter.max_length == 256
    seen: list[tuple[int, ...]] = []
    pair.drafter.model.lm_head.register_forward_hook(lambda module, given, logits: seen.append(tuple(logits.shape)))
    for most, length, expected in ((20, 12, 12), (20, 40, 20), (10_000, 300, 256)):
        adaptation = DraftAdaptation(pair, max_time_share=1.0, max_row_bytes=4 * 1003 * most)
        assert adaptation.learn(text_of(length), SLOW_SECONDS)
        assert seen.pop() == (1, expected, 1003)


def test_the_same_responses_make_the_same_draft_and_a_bfloat16_draft_learns_too() -> None:
    made = []
    for _ in range(2):
        adaptation = DraftAdaptation(load_pair(dtype=torch.bfloat16), max_time_share=1.0)
        before = weights_of(adaptation.pair)
        for number in range(3):
            token_ids = adaptation.pair.tokenizer(PROMPTS[number]).input_ids
            sequence = TokenSequence([*token_ids, 5, 6, 7], len(token_ids))
            text = ServedText(sequence, torch.tensor([[5], [6], [7]]), torch.zeros(3, 1))
            assert adaptation.learn(text, SLOW_SECONDS)
        made.append(weights_of(adaptation.pair))
        assert not torch.equal(made[-1], before)
    assert torch.equal(*made)


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


def test_the_folder_is_a_model_that_grows_and_is_whole_when_a_saving_fails(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "deep" / "adapted"
    with DraftAdaptation.load(folder) as adaptation:
        assert torch.equal(saved_weights(folder), saved_weights(zoo.path("worded")))
        assert recorded(folder) == {"draft": "bundled:worded", "steps": 0, "seconds": 0.0, "response_seconds": 0.0}
        assert adaptation.learn(text_of(10), SLOW_SECONDS)
    changed = weights_of(adaptation.pair)
    assert torch.equal(saved_weights(folder), changed)
    again = DraftAdaptation.load(folder)
    assert torch.equal(weights_of(again.pair), changed)
    assert again.learn(text_of(12), SLOW_SECONDS)
    assert "adapted by 2 steps (1 of them now)" in again.summary()

    def full(*arguments) -> None:
        raise OSError(28, "No space left on device")

    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, full)
    with pytest.raises(OSError, match="No space left"):
        again.save()
    with pytest.raises(OSError, match="No space left"):
        DraftAdaptation.load(tmp_path / "new")
    monkeypatch.undo()
    assert torch.equal(saved_weights(folder), changed)
    again.save()
    assert torch.equal(saved_weights(folder), weights_of(again.pair))
    assert not list(folder.glob(".*"))
    assert list(tmp_path.iterdir()) == [folder.parent]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # of a folder that was not yet entered
def test_ctrl_c_at_any_line_of_a_saving_leaves_the_old_weights_or_the_new(tmp_path: Path) -> None:
    folder = tmp_path / "adapted"
    DraftAdaptation.load(folder).save()
    adaptation = DraftAdaptation.load(folder)
    assert adaptation.learn(text_of(10), SLOW_SECONDS)
    total, written = signalled(adaptation.save), 0
    for strike in range(1, total + 1):
        old = saved_weights(folder)
        assert adaptation.learn(text_of(10), SLOW_SECONDS)
        new = weights_of(adaptation.pair)
        with pytest.raises(KeyboardInterrupt):
            signalled(adaptation.save, strike)
        found, where = saved_weights(folder), f"at line {strike} of {total}"
        written += torch.equal(found, new)
        assert any(torch.equal(found, each) for each in (old, new)), where
        assert not list(folder.glob(".*")), where
        assert 1 <= recorded(folder)["steps"] <= adaptation.steps
    assert 0 < written < total


def test_the_share_of_the_time_holds_over_all_processes(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "adapted"
    DraftAdaptation.load(folder).save()
    of_a_clock(monkeypatch, seconds_per_token=0.001)
    took = []
    for _ in range(20):  # a process for each response, as `cactus generate` is
        with DraftAdaptation.load(folder) as adaptation:
            took.append(adaptation.learn(text_of(100), 0.4))
    assert took[:3] == [True, False, True]
    found = recorded(folder)
    assert found["response_seconds"] == pytest.approx(8.0)
    assert found["steps"] == sum(took)
    assert 0.8 <= found["seconds"] <= 0.9


def test_of_a_draft_in_16_bits_no_step_is_too_small_to_last(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("cactus_decoding.engines.transformers.loader.fastest_dtype", lambda stored, *_, **__: stored)
    source, folder = tmp_path / "source", tmp_path / "adapted"
    load_model("draft", zoo.path("worded"), torch.bfloat16, torch.device("cpu")).save_pretrained(source)
    load_tokenizer("draft", zoo.path("worded")).save_pretrained(source)
    before = load_file(source / "model.safetensors")
    for number in range(3):  # steps of a tenth of what bfloat16 can tell apart
        draft = source if number == 0 else None
        with DraftAdaptation.load(folder, TARGET, draft, learning_rate=1e-6) as adaptation:
            assert adaptation.learn(text_of(12), SLOW_SECONDS)
            assert generate(adaptation.pair, PROMPTS[0], seed=0, max_new_tokens=4).token_ids
    kept = load_file(folder / "model.safetensors")
    moved = torch.cat([(kept[name] - before[name].float()).flatten().abs() for name in before])
    assert set(kept) == set(before)
    assert float(moved.median()) > 2e-6
    assert load_pair(TARGET, folder).drafter.model.dtype == torch.float32


def test_other_folders_and_other_drafts_are_refused_and_stay_as_they_are(tmp_path: Path) -> None:
    full, model, begun, new = (tmp_path / name for name in ("full", "model", "begun", "new"))
    for folder, name in ((full, "notes.txt"), (model, "config.json")):
        folder.mkdir()
        (folder / name).write_text("{}")
    begun.mkdir()  # an empty one is as good as none
    DraftAdaptation.load(begun, draft="bundled:draft").save()
    for folder, given, said in (
        (full, {}, "it is not empty, and stays as it is; give a new folder"),
        (model, {}, "it is not empty, and stays as it is; give a new folder"),
        (begun, {"draft": "bundled"}, "began as a copy of 'bundled:draft', and not of 'bundled:worded'"),
        (new, {"target": TARGET}, "a draft is missing for target"),
        (new, {"draft": model}, "cannot load"),
    ):
        with pytest.raises(ValueError, match=said):
            DraftAdaptation.load(folder, **given)
    DraftAdaptation.load(begun, draft="bundled:draft").save()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["begun", "full", "model"]
    for wrong in ({"learning_rate": 0.0}, {"max_time_share": 1.5}, {"max_row_bytes": 0}, {"loss": "lkk"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be|did you mean"):
            DraftAdaptation(load_pair(), **wrong)
    for text in ("", "[]", "{}", '{"draft": "a", "steps": -1}', '{"draft": "a", "seconds": NaN}', '{"more": 1}'):
        (begun / "adaptation.json").write_text(text)
        with pytest.raises(ValueError, match=r"adaptation\.json"):
            DraftAdaptation.load(begun)
