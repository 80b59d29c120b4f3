"""A GGUF file's own vocabulary against the tokenizer that it was written from."""

import subprocess
import sys
from itertools import islice

import pytest
from support.gguf_files import header_only
from support.patience import PATIENCE
from transformers import AutoTokenizer

from cactus_decoding import load_pair, zoo
from cactus_decoding.core.models.tokenizers import IncrementalDetokenizer, as_chat_prompt
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.types import Fate
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
from cactus_decoding.lab.tracing.positions import TokenNames
from cactus_decoding.zoo.word_problems import word_problems


@pytest.fixture(scope="module")
def theirs():
    return AutoTokenizer.from_pretrained(zoo.path("target"))


@pytest.fixture(scope="module")
def ours(gguf):
    return GgufTokenizer.load("target", parse_gguf(gguf("target")))


TEXTS = ["a\n\nb", "é ü 12345 ½ 10% don't", "<eos> hi", "日本 語 🌵", "", " 3 4", "the 22nd of 1,000 (in 3.5)"]


def test_texts_become_the_same_tokens(ours, theirs):
    problems = [f"{p.prompt} {p.solution}" for p in islice(word_problems("validation"), 200)]
    for text in [*TEXTS, *problems]:
        assert ours(text).input_ids == theirs(text).input_ids
        bare = ours(text, add_special_tokens=False).input_ids
        assert bare == theirs(text, add_special_tokens=False).input_ids


def test_tokens_become_the_same_texts(ours, theirs):
    for text in TEXTS:
        ids = theirs(text).input_ids
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    for token in range(len(theirs)):  # parts of characters too
        assert ours.decode([token]) == theirs.decode([token])


LONG_WORDS = """
import sys
from pathlib import Path
from cactus_decoding.engines.llama_cpp.models.settings import parse_gguf
from cactus_decoding.engines.llama_cpp.models.tokenizer import GgufTokenizer
tokenizer = GgufTokenizer.load("target", parse_gguf(sys.argv[1]))
for letter in "a1! ", "\\n", "é", "a":
    print(len(tokenizer(letter * 200_000).input_ids) > 0)
"""


def test_a_word_of_any_length_does_not_end_the_process(gguf, tmp_path):
    """Vocabularies such as this one's take a call for each letter: an ordinary stack has room for 25,000."""
    path = tmp_path / "afmoe.gguf"
    path.write_bytes(gguf("target").read_bytes().replace(b"gpt-2", b"afmoe", 1))
    command = [sys.executable, "-c", LONG_WORDS, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stdout.split()) == (0, ["True"] * 4), ended.stderr


def test_the_vocabulary_is_the_same(ours, theirs):
    assert len(ours) == len(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert (ours.eos_token_id, ours.eos_token) == (theirs.eos_token_id, theirs.eos_token)
    assert ours.chat_template == theirs.chat_template
    assert [ours.convert_ids_to_tokens(i) for i in range(len(ours))] == theirs.convert_ids_to_tokens(range(len(theirs)))


def test_conversations_are_written_by_the_file_s_template(ours, theirs):
    conversation = [{"role": role, "content": text} for role, text in (("user", "How?"), ("assistant", "So."))]
    assert ours.apply_chat_template(conversation) == theirs.apply_chat_template(conversation, tokenize=False)
    for tokenizer in (ours, theirs):
        assert as_chat_prompt(tokenizer, "How?") == "Question: How?\nAnswer:"
    with pytest.raises(ValueError, match="tokenize must be False"):
        ours.apply_chat_template(conversation, tokenize=True)


def test_what_is_read_from_the_vocabulary_is_the_same(ours, theirs):
    assert vars(Vocabulary.of(ours, len(ours))) == vars(Vocabulary.of(theirs, len(theirs)))
    assert Vocabulary.of(ours, len(ours)).fragments, "some tokens are parts of characters"
    names = TokenNames(ours), TokenNames(theirs)
    assert [names[0](i) for i in range(len(ours) + 2)] == [names[1](i) for i in range(len(ours) + 2)]


def test_characters_are_shown_whole(ours):
    detokenizer = IncrementalDetokenizer(ours)
    parts = [part.text for token in ours("日🌵").input_ids for part in detokenizer.push(token, Fate.ACCEPTED)]
    assert "".join([*parts, *(part.text for part in detokenizer.finish())]) == "日🌵"
    assert "�" not in "".join(parts)


def test_sentence_piece_s_first_space_is_not_shown(tmp_path):
    pieces = ["▁", "a", "c", "t", "at", "cat", "▁cat", "▁a"]
    tokenizer = GgufTokenizer.load("target", parse_gguf(header_only(tmp_path / "model.gguf", "llama", pieces)))
    ids = tokenizer("a cat🌵").input_ids
    assert [tokenizer.convert_ids_to_tokens(i) for i in ids[:3]] == ["<s>", "▁a", "▁cat"]
    assert [tokenizer.convert_ids_to_tokens(i) for i in ids[3:]] == [f"<0x{byte:02X}>" for byte in "🌵".encode()]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "a cat🌵"
    assert tokenizer.decode(ids) == "<s> a cat🌵"
    assert tokenizer.decode(ids[2:], skip_special_tokens=True) == "cat🌵"
    assert TokenNames(tokenizer)(ids[2]) == " cat"
    detokenizer = IncrementalDetokenizer(tokenizer)
    parts = [part.text for token in ids for part in detokenizer.push(token, Fate.ACCEPTED)]
    assert parts == ["a", " cat", "🌵"]
    assert tokenizer.chat_template is None


def test_a_response_stops_where_the_file_says(gguf):
    pair = load_pair(gguf("target"), "ngram")
    assert pair.stop_token_ids == load_pair().stop_token_ids == [2]
