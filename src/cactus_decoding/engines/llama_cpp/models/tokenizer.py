"""The tokenizer of a GGUF file; its chat template, a stranger's program, runs in another process."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Any, NamedTuple

from cactus_decoding.core.models import tokenizers
from cactus_decoding.core.worker import WorkerProcess
from cactus_decoding.engines.llama_cpp import rendering
from cactus_decoding.engines.llama_cpp.models import library
from cactus_decoding.engines.llama_cpp.models.settings import GgufFile
from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights


def start_templates() -> None:
    """Start the process, so that the first conversation does not wait for it."""
    _worker().start()


def render(template: str, conversation: list[dict[str, Any]], options: Mapping[str, Any]) -> str:
    asked = {"template": template, "conversation": conversation, "options": dict(options)}
    return _worker().text(asked | {"most": tokenizers.MAX_TEMPLATE_TEXT}, tokenizers.TEMPLATE_SECONDS, "text")


@cache
def _worker() -> WorkerProcess:
    """Return the one process, which knows no file: each template comes with its conversation."""
    made = WorkerProcess(rendering.__file__, b"{}", "renders chat templates")
    atexit.register(made.close)
    return made


class Encoding(NamedTuple):
    input_ids: list[int]


class GgufTokenizer:
    def __init__(self, model: GgufWeights) -> None:
        if not model.vocabulary_size or model.metadata("tokenizer.ggml.model") in ("no_vocab", "none"):
            raise ValueError(f"cannot load a tokenizer for {model.name!r}: the file has no vocabulary")
        self._model, self._pieces = model, dict[int, bytes]()
        known = library.words(model.vocab, model.vocabulary_size)
        self.all_special_ids = known.special
        self.unused_ids = known.unused
        self._special, self._unused = frozenset(known.special), frozenset(known.unused)
        self.eos_token_id, self.bos_token_id = known.eos, known.bos
        self._drops_space = known.sentence_piece and model.metadata("tokenizer.ggml.add_space_prefix") != "false"

    @classmethod
    def load(cls, role: str, file: GgufFile) -> GgufTokenizer:
        return cls(GgufWeights.load(role, file.path, vocab_only=True))

    def __len__(self) -> int:
        """Return how many tokens there are, those included that only fill the logits up."""
        return self._model.vocabulary_size

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Encoding:
        """Return a text's tokens; names of special tokens in it become these."""
        return Encoding(library.tokenize(self._model.vocab, text, add_special_tokens))

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
        return {text.decode(errors="replace"): i for i, text in enumerate(self._texts) if i not in self._unused}

    def has_all_tokens_of(self, other: GgufTokenizer) -> bool:
        """Say whether all tokens are the same, without naming them: False where that takes `get_vocab` to tell."""
        return self._unused == other._unused and self._texts == other._texts

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self._texts[token_id].decode(errors="replace")

    @cached_property
    def longest(self) -> int:
        """How many bytes of a text a token stands for at most."""
        return max(map(len, self._texts))

    @property
    def eos_token(self) -> str | None:
        return None if self.eos_token_id is None else self.convert_ids_to_tokens(self.eos_token_id)

    @property
    def bos_token(self) -> str | None:
        return None if self.bos_token_id is None else self.convert_ids_to_tokens(self.bos_token_id)

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
        """Return a conversation as the file's template writes it, in a process of its own; see `render`."""
        if tokenize:
            raise ValueError("tokenize must be False: hand the text on to the tokenizer")
        names = {name: getattr(self, name) or "" for name in ("bos_token", "eos_token")}
        asked = {"tools": tools, "add_generation_prompt": add_generation_prompt}
        return render(self.chat_template or "", conversation, options | names | asked)

    @cached_property
    def _texts(self) -> list[bytes]:
        return library.token_texts(self._model.vocab, len(self))

    def piece(self, token_id: int) -> bytes:
        if token_id not in self._pieces:
            self._pieces[token_id] = library.token_piece(self._model.vocab, token_id)
        return self._pieces[token_id]
