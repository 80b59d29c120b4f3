"""The vocabulary of a GGUF file behind the part of transformers' interface that this package uses."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any, NamedTuple

from cactus_decoding.models.llama_cpp.library import library
from cactus_decoding.models.llama_cpp.settings import GgufFile
from cactus_decoding.models.llama_cpp.weights import GgufModel

_UNKNOWN, _UNUSED, _CONTROL = 1, 2, 8
"""Of ``llama_token_attr``."""
_SENTENCE_PIECE = 1
"""``LLAMA_VOCAB_TYPE_SPM``, whose texts may begin with a space that nobody wrote."""


class Encoding(NamedTuple):
    """A text's tokens."""

    input_ids: list[int]


class GgufTokenizer:
    """Texts to tokens and back by a file's own vocabulary.

    Texts are what their tokens say, joined: nothing is cleaned up.

    Args:
        model: the opened file; its weights need not be loaded.

    Raises:
        ValueError: for a file without a vocabulary.
    """

    def __init__(self, model: GgufModel) -> None:
        if not model.own_size or model.metadata("tokenizer.ggml.model") in ("no_vocab", "none"):
            raise ValueError(f"cannot load a tokenizer for {model.name!r}: the file has no vocabulary")
        self._model, self._pieces = model, dict[int, bytes]()
        lib, vocab = library(), model.vocab
        attributes = [lib.llama_vocab_get_attr(vocab, i) for i in range(model.own_size)]
        self.all_special_ids = [i for i, each in enumerate(attributes) if each & (_CONTROL | _UNKNOWN)]
        self._special = frozenset(self.all_special_ids)
        self._unused = frozenset(i for i, each in enumerate(attributes) if each & _UNUSED)
        self.eos_token_id = _known(lib.llama_vocab_eos(vocab))
        self.bos_token_id = _known(lib.llama_vocab_bos(vocab))
        self._drops_space = lib.llama_vocab_type(vocab) == _SENTENCE_PIECE and (
            model.metadata("tokenizer.ggml.add_space_prefix") != "false"
        )

    @classmethod
    def load(cls, role: str, file: GgufFile) -> GgufTokenizer:
        """Open the vocabulary of a file; raise `ValueError` where that cannot be."""
        return cls(GgufModel.load(role, file.path, vocab_only=True))

    def __len__(self) -> int:
        """Return how many tokens there are, those included that only fill the logits up."""
        return self._model.own_size

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Return a text's tokens; names of special tokens in it become these."""
        lib, data = library(), text.encode()
        room = len(data) + 8  # a token is a byte at least; then those at both ends
        while True:
            ids = (ctypes.c_int32 * room)()
            count = lib.llama_tokenize(self._model.vocab, data, len(data), ids, room, add_special_tokens, True)
            if count >= 0:
                return Encoding(ids[:count])
            room = -count

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        """Return the text of tokens; bytes that are no whole character are replaced."""
        ids = [i for i in token_ids if not (skip_special_tokens and i in self._special)]
        text = b"".join(self.piece(i) for i in ids if i < len(self)).decode(errors="replace")
        first = next((i for i in ids if i not in self._special), None)
        if self._drops_space and first is not None and ids[0] == first:
            return text.removeprefix(" ")
        return text

    def get_vocab(self) -> dict[str, int]:
        """Return the number of each token, without those that only fill the logits up."""
        part = self._model.part
        numbers = range(len(self)) if part is None else part.token_ids.tolist()
        return {
            text: number
            for i, (text, number) in enumerate(zip(self._texts, numbers, strict=True))
            if i not in self._unused
        }

    @property
    def is_partial(self) -> bool:
        """Whether other files have more of the same vocabulary."""
        return self._model.part is not None

    def convert_ids_to_tokens(self, token_id: int) -> str:
        """Return what the vocabulary calls a token."""
        return self._texts[token_id]

    @property
    def eos_token(self) -> str | None:
        """The text of the token that ends a text."""
        return None if self.eos_token_id is None else self._texts[self.eos_token_id]

    @property
    def bos_token(self) -> str | None:
        """The text of the token that begins a text."""
        return None if self.bos_token_id is None else self._texts[self.bos_token_id]

    @property
    def chat_template(self) -> str | None:
        """The template of conversations that the file carries, in Jinja."""
        return self._model.metadata("tokenizer.chat_template") or None

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        tools: list[dict[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """Return a conversation as the file's template writes it, by transformers' own sandboxed Jinja.

        Args:
            conversation: messages, each with a role and most with content.
            tokenize: False.
            add_generation_prompt: whether an answer is to follow.
            tools: functions that the answer may call.
            options: further names that the template knows.
        """
        if tokenize:
            raise ValueError("tokenize must be False: hand the text on to the tokenizer")
        from transformers.utils.chat_template_utils import render_jinja_template

        names = {name: getattr(self, name) or "" for name in ("bos_token", "eos_token")}
        rendered, _ = render_jinja_template(
            [conversation],
            tools=tools,
            chat_template=self.chat_template,
            add_generation_prompt=add_generation_prompt,
            **options | names,
        )
        return str(rendered[0])

    @cached_property
    def _texts(self) -> list[str]:
        lib, vocab = library(), self._model.vocab
        return [lib.llama_vocab_get_text(vocab, i).decode(errors="replace") for i in range(len(self))]

    def piece(self, token_id: int) -> bytes:
        """Return what a token adds to a text."""
        if token_id not in self._pieces:
            self._pieces[token_id] = _piece(self._model.vocab, token_id)
        return self._pieces[token_id]


def _piece(vocab: int, token_id: int) -> bytes:
    room = 64
    while True:
        buffer = ctypes.create_string_buffer(room)
        length = library().llama_token_to_piece(vocab, token_id, buffer, room, 0, True)
        if length >= 0:
            return buffer.raw[:length]
        room = -length


def _known(token_id: int) -> int | None:
    return None if token_id < 0 else int(token_id)
