"""Small tokenizers of each kind that people use, learned from a few words."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TOKENIZERS = ("byte_level", "metaspace", "word_piece", "byte_fallback")
_TEXTS = ["a cat has 3 cats and 12 dogs", "a dog is not a cat 4567890", "a cat a cat a cat"]


def tiny_tokenizer(kind: str) -> PreTrainedTokenizerBase:
    """Return a tokenizer of a kind of `TOKENIZERS`, with the control token ``<eos>``."""
    special = ["<eos>", "<unk>"]
    alphabet: list[str] = []
    if kind == "byte_level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    elif kind == "word_piece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece()
    elif kind == "metaspace":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        special += [f"<0x{byte:02X}>" for byte in range(256)]
    if kind == "word_piece":
        trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    else:
        trainer = trainers.BpeTrainer(
            vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
    tokenizer.train_from_iterator(_TEXTS * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")
