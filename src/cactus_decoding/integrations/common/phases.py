"""The phase of each response, by the tokens that an engine has of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cactus_decoding.policy.phases import Phases
from cactus_decoding.policy.vocabulary import Vocabulary


def with_silence(vocabulary: Vocabulary | None) -> Vocabulary:
    """Return a vocabulary with one more token, which says nothing; that token alone, if there is none."""
    known = Vocabulary(()) if vocabulary is None else vocabulary
    return replace(known, texts=(*known.texts, ""))


class FollowedResponse:
    """One response whose request asks for phases, followed token by token.

    Args:
        phases: what its request asks for.
        vocabulary: what tokens say, as `with_silence` returns it: all that it does not know are its last one.
        prompt_ids: the tokens before the response.
        output_ids: the tokens of the response, negative where the engine does not know them yet. The engine adds to
            them, and they are read whenever somebody asks.

    Example:
        >>> words = with_silence(Vocabulary(("<t>", "</t>", "x")))
        >>> response = FollowedResponse(Phases(relax_within=("<t>", "</t>")), words, [0], output_ids := [])
        >>> output_ids += [2, 2]
        >>> response.relaxable([2, 1, -1])
        [True, True, False]
        >>> output_ids += [-1]
        >>> response.relaxable([2, 1, -1])
        [False, False, False]
    """

    def __init__(
        self, phases: Phases, vocabulary: Vocabulary, prompt_ids: Sequence[int], output_ids: list[int]
    ) -> None:
        self.output_ids = output_ids
        self._phases, self._vocabulary = phases, vocabulary
        self._begin = self._state = phases.begin(self._known(prompt_ids), vocabulary)
        self._num_read = 0

    @property
    def reads_tokens(self) -> bool:
        """Whether it matters which the tokens are, and not only how many."""
        return self._phases.relax_within is not None

    @property
    def settled(self) -> bool:
        """Whether every further position may be relaxed."""
        known = min(self._state.num_emitted, len(self.output_ids))
        return not self.reads_tokens and known >= self._phases.lossless_tokens

    def relaxable(self, draft_token_ids: Sequence[int]) -> list[bool]:
        """Say of each of the tokens drafted next whether the position it stands at may be relaxed.

        Nothing may be where the engine does not know what stands before.
        """
        if len(self.output_ids) < self._num_read:  # the engine took tokens back
            self._state, self._num_read = self._begin, 0
        further = self.output_ids[self._num_read :]
        if min(further, default=0) < 0:
            return [False] * len(draft_token_ids)
        self._state = self._phases.after(self._state, self._known(further), self._vocabulary)
        self._num_read += len(further)
        return self._phases.relaxable(self._state, self._known(draft_token_ids), self._vocabulary)

    def _known(self, token_ids: Sequence[int]) -> Sequence[int]:
        if not self._phases.reads_text:
            return token_ids
        silence = len(self._vocabulary.texts) - 1
        return [token if 0 <= token < silence else silence for token in token_ids]
