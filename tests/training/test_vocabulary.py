"""Drafts that propose a part of the vocabulary: counting, GGUF files, folders, and the law that verification keeps."""

from __future__ import annotations

import json
from collections import Counter
from string import ascii_lowercase

import pytest
import torch
from support.exact_enumeration import fates
from support.gguf_files import PRECISE, opened
from support.loop_runs import PROMPT, run, tokens
from support.rules_under_test import every_rule
from support.tiny_models import tiny_llama

from cactus_decoding import Lossless, ModelDrafter, SamplingParams, audit, load_pair, parse_rule, stream, zoo
from cactus_decoding.conformance.gguf_files import write_gguf
from cactus_decoding.models.llama_cpp.model import LlamaCppModel
from cactus_decoding.models.llama_cpp.part import BESIDE
from cactus_decoding.models.llama_cpp.settings import parse_gguf
from cactus_decoding.models.llama_cpp.tokenizer import GgufTokenizer
from cactus_decoding.models.loading import load_model, load_tokenizer
from cactus_decoding.models.partial_head import PartialHead, propose_from
from cactus_decoding.models.tokenizers import check_same_vocabulary
from cactus_decoding.training.acceptance.data import commonest
from cactus_decoding.training.acceptance.settings import TrainingSettings
from cactus_decoding.training.acceptance.training import train_draft
from cactus_decoding.training.vocabulary import trim_draft, trim_gguf
from cactus_decoding.zoo.word_problems import EXAMPLES

PART = [0, 2, 3, 6]
TEXT = [1, 7, 4, 2, 5]
OUTSIDE = [1, 4, 5, 7]


def as_gguf(model, path):
    write_gguf(model, ["<end>", *ascii_lowercase[: model.config.vocab_size - 1]], path)
    return path


def drafting(path):
    return LlamaCppModel.load("draft", parse_gguf(f"{path}:{PRECISE}"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trimmed")
    whole = as_gguf(tiny_llama(1), folder / "whole.gguf")
    trim_gguf(whole, PART, folder / "part.gguf")
    return {"whole": whole, "part": folder / "part.gguf", "target": as_gguf(tiny_llama(0), folder / "target.gguf")}


def emitted(rule, target, drawn, judged):
    """Return the law of a token that is drawn by one row and judged by another."""
    kept, recovery = fates(rule, target, judged)
    return drawn * kept + ((drawn * (1 - kept)).unsqueeze(-1) * recovery).sum(1)


def rows():
    logits = torch.randn(2, 20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return (2 * logits).softmax(-1)


def trimmed(rows):
    part = rows.clone()
    part[:, OUTSIDE] = 0
    return part / part.sum(-1, keepdim=True)


@every_rule()
def test_every_rule_emits_what_its_audit_says_of_a_draft_of_a_part(spelling):
    rule = parse_rule(spelling)
    target, whole = rows()
    draft = trimmed(whole)
    expected = emitted(rule, target, draft, draft)
    torch.testing.assert_close(audit(rule, target, draft).output_probs, expected, atol=1e-9, rtol=0)


def test_lossless_is_exact_where_the_row_is_that_of_the_part():
    """Neither the whole row nor one whose tokens are numbered as in the part would do."""
    target, whole = rows()
    draft = trimmed(whole)
    shifted = torch.zeros_like(draft)
    shifted[:, : len(PART)] = draft[:, PART]
    torch.testing.assert_close(emitted(Lossless(), target, draft, draft), target, atol=1e-12, rtol=0)
    for wrong in (whole, shifted):
        assert (emitted(Lossless(), target, draft, wrong) - target).abs().sum(-1).max() > 0.05


def test_the_commonest_tokens_are_counted():
    assert commonest([5, 3, 5, 9, 9, 9, 7, 3], size=3) == [3, 5, 9]
    assert commonest([5], size=1, always=[7, 8]) == [7, 8]
    assert commonest([5, 5, 1], size=9) == [1, 5]


def test_a_trimmed_file_reads_every_token_and_has_the_rows_of_its_part(files):
    whole, part = (drafting(files[name]).append(TEXT, len(TEXT)) for name in ("whole", "part"))
    torch.testing.assert_close(part[:, PART], whole[:, PART], atol=1e-4, rtol=0)
    assert part.shape == whole.shape
    assert part[:, OUTSIDE].eq(-torch.inf).all()


def test_a_trimmed_file_drafts_for_its_target(files):
    target, part = opened(files["target"]), ModelDrafter(drafting(files["part"]), 8)
    plain = tiny_llama(0).generate(torch.tensor([PROMPT]), do_sample=False, max_new_tokens=40, pad_token_id=0)
    steps = run(target, part, "lossless", 4, length=43, sampling=SamplingParams(temperature=0))
    assert tokens(steps) == plain[0, 3:].tolist()


def test_what_is_drafted_has_the_law_of_the_part(files):
    drafter = ModelDrafter(drafting(files["part"]), 8)
    proposal = drafter.propose(TEXT, 2, lambda logits, _: logits.softmax(-1), torch.Generator().manual_seed(0))
    assert set(proposal.token_ids) <= set(PART)
    torch.testing.assert_close(proposal.probs[:, OUTSIDE], torch.zeros(2, len(OUTSIDE)))
    torch.testing.assert_close(proposal.probs.sum(-1), torch.ones(2))


def test_the_tokens_of_a_trimmed_file_are_compared_by_their_numbers(files):
    names = ("target", "part")
    target, part = (GgufTokenizer(drafting(files[name]).model) for name in names)
    check_same_vocabulary(target, part, *names)
    with pytest.raises(ValueError, match="both must have the same tokens"):
        check_same_vocabulary(part, target, *reversed(names))
    with pytest.raises(ValueError, match="it can be a draft, but no target"):
        opened(files["part"])


def test_a_file_of_another_draft_beside_one_is_refused(files, tmp_path):
    trim_gguf(files["whole"], [0, 1], tmp_path / "two.gguf")
    (tmp_path / f"two.gguf{BESIDE}").write_bytes(files["part"].with_name(f"part.gguf{BESIDE}").read_bytes())
    with pytest.raises(ValueError, match="they belong to different drafts"):
        drafting(tmp_path / "two.gguf")
    (tmp_path / f"two.gguf{BESIDE}").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="says no part of a vocabulary"):
        drafting(tmp_path / "two.gguf")


def test_what_cannot_be_trimmed_is_refused(files, tmp_path):
    with pytest.raises(ValueError, match="has 8 tokens, but token 9 is to be kept"):
        trim_gguf(files["whole"], [9], tmp_path / "out.gguf")
    for draft, output in ((files["whole"], tmp_path / "folder"), (tmp_path, tmp_path / "a.gguf"), (tmp_path, tmp_path)):
        with pytest.raises(ValueError, match="output must be"):
            trim_draft(str(draft), "texts.jsonl", 4, output)
    with pytest.raises(ValueError, match="must be a folder of transformers or a GGUF file, but is 'owner/name'"):
        trim_draft("owner/name", "texts.jsonl", 4, tmp_path / "folder")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="proposes from its whole vocabulary"):
        trim_draft(str(files["whole"]), str(tmp_path), 4, tmp_path / "out.gguf")


def test_a_trimmed_file_is_not_trimmed_again(files, tmp_path):
    with pytest.raises(ValueError, match="proposes from a part of its vocabulary already"):
        trim_draft(str(files["part"]), "texts.jsonl", 4, tmp_path / "out.gguf")


def test_a_model_proposes_from_a_part():
    whole, part = tiny_llama(1), tiny_llama(1)
    propose_from(part, PART)
    ids = torch.tensor([TEXT])
    for change in (0.0, 0.5):  # the copy of the rows follows the weights
        with torch.no_grad():
            for each in (whole, part):
                each.lm_head.weight += change
            rows, theirs = (each(ids).logits for each in (part, whole))
        torch.testing.assert_close(rows[..., PART], theirs[..., PART])
        assert rows[..., OUTSIDE].eq(-torch.inf).all()
    part(ids).logits[..., PART].sum().backward()
    learned = part.lm_head.weight.grad.abs().sum(-1) > 0
    assert learned.tolist() == [i in PART for i in range(8)]
    for wrong in ([], [8], [-1]):
        with pytest.raises(ValueError, match="draft_vocabulary must list tokens from 0 to 7"):
            propose_from(tiny_llama(1), wrong)


def test_a_folder_says_what_its_draft_proposes_from(tmp_path, files):
    model = tiny_llama(1)
    propose_from(model, PART)
    model.save_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["draft_vocabulary"] == PART
    cpu = torch.device("cpu")
    assert type(load_model("draft", tmp_path / "model", torch.float32, cpu).lm_head) is PartialHead
    assert type(load_model("target", tmp_path / "model", torch.float32, cpu).lm_head) is torch.nn.Linear
    assert trim_draft(str(files["whole"]), str(tmp_path / "model"), 1, tmp_path / "again.gguf") == len(PART)


def test_a_folder_and_a_file_are_trimmed_to_the_tokens_of_lines_of_text(tmp_path, files):
    (tmp_path / "texts.jsonl").write_text('{"text": "gaga"}\n{"prompt": "ga", "completion": "c"}\n')
    texts = str(tmp_path / "texts.jsonl")
    folder = zoo.path("worded")
    tokenizer = load_tokenizer("draft", folder)
    counts = Counter(i for text in ("gaga", "ga", "c") for i in tokenizer(text, add_special_tokens=False).input_ids)
    kept = sorted([tokenizer.eos_token_id, *(i for i, _ in counts.most_common(2))])
    assert trim_draft(str(folder), texts, 3, tmp_path / "trimmed") == 3
    configs = (json.loads((each / "config.json").read_text()) for each in (tmp_path / "trimmed", folder))
    assert next(configs) == next(configs) | {"draft_vocabulary": kept}
    names = {each.name for each in folder.iterdir() if each.is_file()}
    assert names <= {each.name for each in (tmp_path / "trimmed").iterdir()}
    assert trim_draft(str(files["whole"]), texts, 3, tmp_path / "three.gguf") == 3
    assert drafting(tmp_path / "three.gguf").model.part.token_ids.tolist() == [0, 1, 7]


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["lk", "cross_entropy", "total_variation"])
def test_a_draft_is_trained_for_the_commonest_tokens_of_its_text(tmp_path, loss):
    settings = TrainingSettings(
        "bundled", "word_problems:split=train", draft="bundled:worded", draft_vocabulary=60, loss=loss, problems=8,
        max_new_tokens=8, steps=2, batch_size=2,
    )  # fmt: skip
    folder = train_draft(settings, tmp_path / "draft")
    listed = json.loads((folder / "config.json").read_text())["draft_vocabulary"]
    assert len(listed) == 60
    outcome = next(iter(stream(load_pair("bundled", folder), EXAMPLES[0].prompt, seed=0)))
    assert set(outcome.proposal.token_ids) <= set(listed)
