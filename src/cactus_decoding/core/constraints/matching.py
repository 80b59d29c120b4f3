"""Grammars followed token by token, by llguidance."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from cactus_decoding.core.constraints import compiling
from cactus_decoding.core.constraints.base import ConstraintError, Grammar
from cactus_decoding.core.extras import needing

_KEPT_MASKS = 64  # masks of the newest tokens; no step goes back further. An older one is worked out again


class GrammarVocabulary:
    def __init__(self, tokenizer: Any, size: int, ends: Sequence[int]) -> None:
        self.tokenizer, self.size, self.ends = tokenizer, size, frozenset(ends)

    @classmethod
    def of(cls, tokenizer: Any, size: int, ends: Sequence[int]) -> GrammarVocabulary:
        key = size, tuple(ends)
        made = _MADE.setdefault(tokenizer, {})
        if key not in made:
            made[key] = cls(_llguidance(tokenizer, size, list(ends)), size, ends)
        return made[key]

    def constraint(self, grammar: Grammar | str) -> GrammarConstraint:
        if isinstance(grammar, str):
            return GrammarConstraint(self, grammar)
        try:
            return GrammarConstraint(self, compiling.translate(grammar.kind, grammar.text))
        except ValueError as error:
            raise ValueError(f"cannot read {grammar.name}: {compiling.one_line(str(error))}") from None


_MADE: WeakKeyDictionary[Any, dict[Any, GrammarVocabulary]] = WeakKeyDictionary()


class GrammarConstraint:
    """Tokens that a grammar allows; a `Constraint`.

    Where only one text can come next, only the model's own spelling of it is allowed: after ``{"`` that is the token
    ``name``, and not ``n`` followed by ``ame``. The masks are the definition of what is allowed.
    """

    def __init__(self, vocabulary: GrammarVocabulary, grammar: str) -> None:
        self._vocabulary, self._grammar = vocabulary, grammar
        # a new one for each response: copies of a matcher share their states, whose number is limited
        self._matcher = compiling.matcher_of(vocabulary.tokenizer, grammar)
        self._tokens = list[int]()  # that the matcher has consumed
        self._masks = dict[int, np.ndarray[Any, Any]]()  # by how many tokens stand before; bits
        self._seen = list[int]()  # the tokens that the masks stand after: draft and target ask for the same ones

    def copy(self) -> GrammarConstraint:
        return GrammarConstraint(self._vocabulary, self._grammar)

    def allowed(self, token_ids: Sequence[int]) -> Tensor | None:
        if not self._follow(token_ids):
            return None
        size = self._vocabulary.size
        bits = np.unpackbits(self._mask(), count=min(size, 8 * len(self._mask())), bitorder="little")
        bits = bits if len(bits) == size else np.pad(bits, (0, size - len(bits)))
        return torch.from_numpy(bits.view(np.bool_))

    def forced(self, token_ids: Sequence[int], limit: int) -> list[int]:
        found = list[int]()
        while len(found) < limit and self._follow([*token_ids, *found]):
            token = _only(self._mask())
            if token is None or token >= self._vocabulary.size:
                break
            found.append(token)
        return found

    def may_end(self, token_ids: Sequence[int]) -> bool:
        return self._follow(token_ids) and bool(self._matcher.is_accepting())

    def _follow(self, token_ids: Sequence[int]) -> bool:
        """Bring the matcher to the end of these tokens; return False where one is not allowed, or ends the response."""
        shared, limit = 0, min(len(token_ids), len(self._tokens))
        if list(token_ids[:limit]) == self._tokens[:limit]:
            shared = limit
        else:
            while token_ids[shared] == self._tokens[shared]:
                shared += 1
        if shared < len(self._tokens):
            self._matcher.rollback(len(self._tokens) - shared)
            del self._tokens[shared:]
        for token in token_ids[shared:]:
            bits = self._mask()
            if token in self._vocabulary.ends or token // 8 >= len(bits) or not bits[token // 8] >> token % 8 & 1:
                return False  # llguidance's matcher could not go back past it either
            self._matcher.consume_token(token)
            self._check()
            depth = len(self._tokens)
            if self._seen[depth : depth + 1] != [token]:
                self._seen[depth:] = [token]
                self._masks = {place: mask for place, mask in self._masks.items() if place <= depth}
            self._tokens.append(token)
        return True

    def _mask(self) -> np.ndarray[Any, Any]:
        """Return a bit for each token: whether it may come after what the matcher has consumed."""
        depth = len(self._tokens)
        if depth not in self._masks:
            try:
                mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            except BaseException as error:
                if type(error).__name__ != "PanicException":  # of Rust, which is no Exception
                    raise
                raise self._failed(str(error)) from None
            self._check()
            if self._matcher.is_stopped() and not self._matcher.is_accepting():
                raise self._stuck()
            self._masks[depth] = mask
            self._masks.pop(depth - _KEPT_MASKS, None)
        return self._masks[depth]

    def _check(self) -> None:
        if self._matcher.is_error():
            said = self._matcher.get_error()
            raise self._stuck() if said.strip().startswith("NoExtension") else self._failed(said)

    def _failed(self, said: str) -> Exception:
        if "PyErr" in said:  # of the tokenizer that it asks: no mistake of the constraint's
            return RuntimeError(f"llguidance failed: {said}")
        return ConstraintError(f"the constraint gave up after {len(self._tokens)} tokens: {compiling.one_line(said)}")

    def _stuck(self) -> ConstraintError:
        after = f"after {len(self._tokens)} tokens"
        return ConstraintError(f"the constraint cannot go on {after}: the model has no token for what must follow")


def _only(mask: np.ndarray[Any, Any]) -> int | None:
    """Return the place of the only bit that is set; None where several are, or none."""
    places = mask.nonzero()[0]
    if len(places) != 1 or (byte := int(mask[places[0]])).bit_count() != 1:
        return None
    return 8 * int(places[0]) + byte.bit_length() - 1


def vocabulary_of(tokenizer: Any, ends: Sequence[int]) -> compiling.CompilerVocabulary:
    """Return the tokens of a tokenizer that knows their bytes, as of a GGUF file, or spells them as SentencePiece."""
    if hasattr(tokenizer, "piece"):
        unused = frozenset(tokenizer.unused_ids)
        tokens = [b"" if i in unused else tokenizer.piece(i) for i in range(len(tokenizer))]

        def encode(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False).input_ids)

        return compiling.CompilerVocabulary(tokens, tokenizer.all_special_ids, ends, encode)
    names = [str(tokenizer.convert_ids_to_tokens(i) or "") for i in range(len(tokenizer))]
    if not any(name.startswith("▁") for name in names):
        raise ValueError(
            f"cannot constrain responses of a {type(tokenizer).__name__}: it does not tell its tokens' bytes"
        )
    return compiling.CompilerVocabulary([_sentence_piece(name) for name in names], tokenizer.all_special_ids, ends)


def _sentence_piece(name: str) -> bytes:
    r"""Return the bytes of a token that is spelled as SentencePiece does.

    Example:
        >>> _sentence_piece("▁two"), _sentence_piece("<0x0A>")
        (b' two', b'\n')
    """
    found = re.fullmatch(r"<0x([0-9A-F]{2})>", name)
    return bytes([int(found[1], 16)]) if found else name.replace("▁", " ").encode()


def _llguidance(tokenizer: Any, size: int, ends: list[int]) -> Any:
    with needing("structured answers need llguidance", "grammar"):
        from llguidance import LLTokenizer
    if not ends:
        raise ValueError("a constrained response needs a model with an end token, but the target names none")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return vocabulary_of(tokenizer, ends).llguidance()
    backend = copy.copy(backend)
    backend.no_padding()
    backend.no_truncation()
    try:
        wide = size if size >= backend.get_vocab_size(with_added_tokens=True) else None
        return LLTokenizer(backend.to_str(), n_vocab=wide, eos_token=ends)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return vocabulary_of(tokenizer, ends).llguidance()
