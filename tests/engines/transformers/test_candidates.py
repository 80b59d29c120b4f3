"""Transformers' candidate generators as drafters: the law they report, the same drafts as in transformers, clean-up."""

import copy
from functools import wraps

import pytest
import torch
from support.drafters import CUT, KINDS, LETTERS, TOKENIZERS, letters_renumbered, renumbered, with_other_tokens
from support.loop_runs import PROMPT, decided, run, tokens
from support.tiny_architectures import tiny_dflash, tiny_gemma4_pair, tiny_gpt2, tiny_mtp, word_tokenizer
from support.tiny_models import tiny_llama
from support.versions import since
from transformers import GenerationConfig, Glm4MoeForCausalLM, MambaConfig, MambaForCausalLM
from transformers.generation import candidate_generator as generators
from transformers.generation.candidate_generator import AssistedCandidateGenerator, PromptLookupCandidateGenerator

from cactus_decoding import CandidateGeneratorDrafter, Metrics, SamplingParams, speculative_generate
from cactus_decoding.core.drafting.lengths import FixedLength
from cactus_decoding.core.sampling.params import SamplingFn
from cactus_decoding.engines.transformers.assistance import Assistance
from cactus_decoding.engines.transformers.cached_model import CachedModel


@pytest.fixture(scope="module")
def target() -> CachedModel:
    return CachedModel(tiny_llama(0))


@pytest.fixture(scope="module")
def draft():
    return tiny_llama(1)


def greedy(model, prompt, length=24):
    return model.generate(torch.tensor([prompt]), do_sample=False, max_length=length)[0, len(prompt) :].tolist()


def settings(**given) -> GenerationConfig:
    return GenerationConfig(**{"do_sample": True, "top_k": 0, "min_length": 0, "max_length": 64} | given)


def by_hand(draft, **given) -> AssistedCandidateGenerator:
    """A generator as a user of transformers would make it, for one response."""
    prompt = torch.tensor([PROMPT])
    return AssistedCandidateGenerator(prompt, draft, settings(**given), {"attention_mask": torch.ones_like(prompt)})


def make(kind: str, draft):
    return KINDS[kind].make(CachedModel(draft), draft)


def test_the_law_of_a_draft_with_other_tokens_is_accepted_whole_by_its_twin(target):
    drafter = with_other_tokens(letters_renumbered(target.model), *TOKENIZERS)
    steps = run(target, drafter, sampling=CUT, length=40)
    assert all(step.num_accepted == step.num_drafted > 0 for step in steps[:-1])


def test_retokenizing_proposes_the_draft_s_likeliest_text(target):
    """A twin whose words are the target's in another order."""
    words = "c a h g b f d e"
    twin = renumbered(target.model, [LETTERS.split().index(word) for word in words.split()])
    tokenizers = word_tokenizer(LETTERS), word_tokenizer(words)
    drafter = with_other_tokens(twin, *tokenizers, retokenize=True)
    drafter.begin_response(target, FixedLength(0))
    proposal = drafter.propose(PROMPT, 4, lambda logits, _: logits, None)
    assert proposal.probs is None
    likeliest = greedy(target.model, PROMPT, 7)
    # where a word is repeated, as here, transformers' matching of the two texts may lose one
    assert len(proposal.token_ids) >= 3
    assert likeliest[-len(proposal.token_ids) :] == proposal.token_ids


def test_history_processors_apply_to_a_draft_with_other_tokens(target):
    """The request's law sees the target's own token numbers, so that the twin's proposals are all accepted."""
    model = target.model
    drafter = with_other_tokens(letters_renumbered(model), *TOKENIZERS)
    metrics = Metrics()
    arguments = {"do_sample": True, "top_k": 0, "repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    ours = {"custom_generate": speculative_generate, "drafter": drafter, "seed": 0, "metrics": metrics}
    model.generate(torch.tensor([PROMPT]), max_new_tokens=20, **ours, **arguments)
    assert metrics.accepted == metrics.drafted > 0


class Recorder:
    """Writes down, of each draft, the sequence it follows and its tokens."""

    def __init__(self, monkeypatch, kind: type) -> None:
        self.drafts: list[tuple[list[int], list[int]]] = []
        original = kind.get_candidates

        @wraps(original)  # whose signature says what it is told
        def get_candidates(generator, input_ids, *args, **kwargs):
            result = original(generator, input_ids, *args, **kwargs)
            self.drafts.append((input_ids[0].tolist(), result[0][0, input_ids.shape[1] :].tolist()))
            return result

        monkeypatch.setattr(kind, "get_candidates", get_candidates)

    def taken(self) -> list[tuple[list[int], list[int]]]:
        taken, self.drafts = self.drafts, []
        return taken


def check_same_drafts(recorder, model, ours: dict, theirs: dict, k=50, length=40):
    """In greedy decoding both follow the same text, so that a draft that differs is one from a wrong state."""
    prompt = torch.tensor([PROMPT])
    plain = model.generate(prompt, do_sample=False, max_length=length)
    recorder.taken()
    assert torch.equal(model.generate(prompt, do_sample=False, max_length=length, **theirs), plain)
    expected = recorder.taken()
    metrics = Metrics()
    arguments = {"custom_generate": speculative_generate, "num_speculative_tokens": k, "metrics": metrics}
    assert torch.equal(model.generate(prompt, do_sample=False, max_length=length, **arguments, **ours), plain)
    drafts = recorder.taken()
    count = min(len(drafts), len(expected)) - 1  # limits near the end are counted differently
    assert count > 5
    assert drafts[:count] == expected[:count]
    assert len({tuple(draft) for _, draft in drafts}) > 3, "drafts are too alike for the comparison to mean anything"
    return metrics


def configure(monkeypatch, model, **settings):
    for name, value in (settings | {"assistant_confidence_threshold": 0.0}).items():
        monkeypatch.setattr(model.generation_config, name, value)


@since("5.19.0")
def test_multi_token_prediction_drafts_as_in_transformers(tmp_path, monkeypatch):
    monkeypatch.setattr(Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", {r"model\.layers\.[23].*"})
    model = tiny_mtp(tmp_path)
    recorder = Recorder(monkeypatch, generators.MTPCandidateGenerator)
    check_same_drafts(recorder, model, {"use_mtp": True}, {"use_mtp": True})
    drafter = CandidateGeneratorDrafter(use_mtp=True)
    for _ in range(2):  # states are new for each response
        check_same_drafts(recorder, model, {"drafter": drafter}, {"use_mtp": True})
    sampled = run(CachedModel(model), drafter, length=30)
    assert any(step.num_accepted for step in sampled)


@since("5.19.0")
def test_dflash_drafts_as_in_transformers(target, monkeypatch):
    recorder = Recorder(monkeypatch, generators.DFlashTokenCandidateGenerator)
    arguments = {"assistant_model": tiny_dflash(1), "speculation_type": "dflash"}
    metrics = check_same_drafts(recorder, target.model, arguments, arguments)
    assert metrics.accepted > 0


@since("5.20.2")  # which gives it all that it requires
def test_gemma4_assistant_drafts_as_in_transformers(monkeypatch):
    model, draft = tiny_gemma4_pair(0)
    recorder = Recorder(monkeypatch, generators.SinglePositionMultiTokenCandidateGenerator)
    configure(monkeypatch, draft, num_assistant_tokens=5)
    check_same_drafts(recorder, model, {"assistant_model": draft}, {"assistant_model": draft}, k=5)
    metrics = Metrics()
    ours = {"custom_generate": speculative_generate, "drafter": CandidateGeneratorDrafter(assistant_model=draft)}
    model.generate(torch.tensor([PROMPT]), do_sample=True, max_new_tokens=20, metrics=metrics, **ours)
    assert metrics.drafted > 0


@since("5.19.0")  # before, transformers' own fails by itself
def test_an_early_exit_drafts_as_in_transformers(target):
    config = settings(do_sample=False, assistant_early_exit=1, pad_token_id=0)
    prompt = torch.tensor([PROMPT])
    named = {"model_kwargs": {"attention_mask": torch.ones_like(prompt)}}
    theirs = generators.EarlyExitCandidateGenerator(prompt, target.model, config, **named)
    drafter = Assistance(target.model, config, {}).choose_drafter()
    ours = drafter.propose(PROMPT, 20, SamplingFn(SamplingParams(temperature=0)), None).token_ids
    assert ours == theirs.get_candidates(prompt)[0][0, len(PROMPT) :].tolist()
    assert len(set(ours)) > 2


@since("5.19.0")
def test_a_generator_hears_how_many_candidates_were_kept(target, draft, monkeypatch):
    """The heuristic schedule lengthens and shortens drafts: the same lengths as in transformers."""
    recorder = Recorder(monkeypatch, AssistedCandidateGenerator)
    asked = {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": "heuristic_transient"}
    configure(monkeypatch, draft, **asked)
    drafter = CandidateGeneratorDrafter(by_hand(draft, do_sample=False))
    check_same_drafts(recorder, target.model, {"drafter": drafter}, {"assistant_model": draft})


def test_a_threshold_stops_after_an_unlikely_token_and_keeps_it(target, draft):
    drafter = make("threshold", draft)
    drafter.begin_response(target, FixedLength(0))
    lengths = set()
    for seed in range(20):
        proposal = drafter.propose(PROMPT, 6, lambda logits, _: logits.softmax(-1), torch.Generator().manual_seed(seed))
        chosen = proposal.probs[range(len(proposal.token_ids)), proposal.token_ids]
        assert (chosen[:-1] >= 0.6).all()
        assert len(chosen) == 6 or chosen[-1] < 0.6
        lengths.add(len(chosen))
        drafter.begin_response(target, FixedLength(0))
    assert len(lengths) > 1


def rows_and_what_was_drawn_from(monkeypatch, target: CachedModel, drafter) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Run a response; return of each proposal its rows, and what `torch.multinomial` was given for them."""
    drawn, found, multinomial, propose = [], [], torch.multinomial, drafter.propose

    def watched(*given):
        drawn.clear()
        proposal = propose(*given)
        if proposal.token_ids:
            found.append((proposal.probs, torch.cat(drawn)[: len(proposal.token_ids)]))
        return proposal

    monkeypatch.setattr(torch, "multinomial", lambda probs, **named: drawn.append(probs) or multinomial(probs, **named))
    monkeypatch.setattr(drafter, "propose", watched)
    run(target, drafter, sampling=CUT, length=40)
    assert len(found) > 5
    return found


def check_drawn_from_its_rows(monkeypatch, target: CachedModel, drafter) -> None:
    for rows, drawn in rows_and_what_was_drawn_from(monkeypatch, target, drafter):
        torch.testing.assert_close(rows.float(), drawn.float(), rtol=0, atol=1e-6)
        assert (rows == 0).any(), "the request's sampling cuts"


@pytest.mark.parametrize("kind", ["assisted", "threshold"])
def test_a_draft_model_draws_from_the_rows_that_are_proposed(monkeypatch, target, draft, kind):
    check_drawn_from_its_rows(monkeypatch, target, make(kind, draft))


def test_a_draft_with_other_tokens_draws_from_the_rows_that_are_proposed(monkeypatch, target, draft):
    drafter = with_other_tokens(letters_renumbered(draft), *TOKENIZERS)
    order = [TOKENIZERS[1].convert_tokens_to_ids(word) for word in LETTERS.split()]
    for rows, drawn in rows_and_what_was_drawn_from(monkeypatch, target, drafter):
        torch.testing.assert_close(rows.float(), drawn.float()[:, order], rtol=0, atol=1e-6)


@since("5.19.0")
def test_heads_draw_from_the_rows_that_are_proposed(monkeypatch, tmp_path, target):
    monkeypatch.setattr(Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", {r"model\.layers\.[23].*"})
    check_drawn_from_its_rows(monkeypatch, CachedModel(tiny_mtp(tmp_path)), CandidateGeneratorDrafter(use_mtp=True))
    dflash = CandidateGeneratorDrafter(assistant_model=tiny_dflash(1), speculation_type="dflash")
    check_drawn_from_its_rows(monkeypatch, target, dflash)


def test_a_draft_with_other_tokens_is_not_changed(target, draft):
    other = letters_renumbered(draft)
    head, embedding, config = other.lm_head, other.get_input_embeddings(), copy.deepcopy(other.generation_config)
    for retokenize in (False, True):
        run(target, with_other_tokens(other, *TOKENIZERS, retokenize=retokenize))
    assert other.lm_head is head
    assert other.get_input_embeddings() is embedding
    assert other.generation_config == config


def test_settings_of_the_draft_do_not_bend_the_law(target, draft):
    bent = copy.deepcopy(draft)
    bent.generation_config.update(temperature=0.1, top_k=2, top_p=0.5, repetition_penalty=3.0, num_assistant_tokens=1)
    expected = decided(run(target, make("assisted", draft)))
    assert decided(run(target, make("assisted", bent))) == expected


@pytest.mark.parametrize("retokenize", [False, True])
def test_a_token_that_leaves_the_draft_nothing_to_read_does_no_harm(target, draft, retokenize):
    """The target's token 7 is special, so that its text is empty, and the draft has no such token."""
    target_words, draft_words = "a b c d e f g <end>", "c x a h y g b f d e"
    tokenizers = word_tokenizer(target_words), word_tokenizer(draft_words)
    drafter = with_other_tokens(letters_renumbered(draft), *tokenizers, retokenize=retokenize)
    emitted = tokens(run(target, drafter, seed=4, length=40))
    assert len(emitted) == 37
    assert 7 in emitted[:-1]


@pytest.mark.parametrize("retokenize", [False, True])
def test_a_draft_with_other_tokens_stops_proposing_at_the_end_of_its_window(target, retokenize):
    """Learned positions: one token too many would raise."""

    def drafter(positions):
        small, letters = tiny_gpt2(1, positions=positions), word_tokenizer(LETTERS)
        return with_other_tokens(small, letters, letters, retokenize=retokenize)

    steps = run(target, drafter(12), length=30)
    assert len(tokens(steps)) == 27
    assert steps[0].num_drafted > 0
    assert steps[-2].num_drafted == 0
    assert not any(step.num_drafted for step in run(target, drafter(3)))


def test_a_generator_made_for_one_response_refuses_a_second(target, draft):
    drafter = CandidateGeneratorDrafter(by_hand(draft))
    run(target, drafter)
    with pytest.raises(ValueError, match="serves one response"):
        run(target, drafter)
    nothing = torch.tensor([-1])  # version 5.0 fails without an end
    lookup = CandidateGeneratorDrafter(PromptLookupCandidateGenerator(max_length=64, eos_token_id=nothing))
    assert decided(run(target, lookup)) == decided(run(target, lookup))


def test_wrong_uses_are_named(target, draft):
    with pytest.raises(TypeError, match="must be a candidate generator, but is 'gpt2'"):
        CandidateGeneratorDrafter("gpt2")
    with pytest.raises(ValueError, match="give a generator, an assistant_model or use_mtp"):
        CandidateGeneratorDrafter()
    with pytest.raises(ValueError, match="assistant_confidence_threshold must be in"):
        CandidateGeneratorDrafter(assistant_model=draft, assistant_confidence_threshold=1.5)
    with pytest.raises(ValueError, match="call begin_response"):
        make("assisted", draft).propose(PROMPT, 3, lambda logits, _: logits, None)
    mamba = MambaConfig(vocab_size=8, hidden_size=16, num_hidden_layers=1, state_size=4)
    with pytest.raises(ValueError, match="MambaForCausalLM keeps a recurrent state"):
        run(target, CandidateGeneratorDrafter(assistant_model=MambaForCausalLM(mamba)))
    with pytest.raises(ValueError, match="vocabulary has 8 tokens, but AssistedCandidateGenerator scores 11"):
        run(target, CandidateGeneratorDrafter(by_hand(tiny_llama(2, 11))))
