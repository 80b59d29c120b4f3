"""A `llama_cpp.Llama` that drafts and verifies."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from llama_cpp import Llama
from llama_cpp.llama_chat_format import Llava15ChatHandler, MTMDChatHandler

from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.request import DECODING
from cactus_decoding.core.spelling import read_kept_prompts
from cactus_decoding.engines.llama_cpp.runtime import CallProcessors, begin_call, generated_tokens

if TYPE_CHECKING:  # torch is imported with the first model: whoever imports the class must not wait for it
    from cactus_decoding.core.pair import Pair
    from cactus_decoding.core.types import Choice, Drafter
    from cactus_decoding.engines.llama_cpp.answering import StepReader

CALL_SETTINGS = ("budget", *DECODING)  # of a `Request`: what calls take besides, and the constructor for all calls
_CALL = (*CALL_SETTINGS, "cancelled", "choices", "thinking_budget")
_COMPLETION = signature(Llama.create_completion)


class CactusLlama(Llama):
    """llama-cpp-python's class with this package's loop in the place of its own: draft, verify, relax.

    Whatever makes texts goes through `generate`: completions, chat formats, function calls, streams. Sampling is
    llama.cpp's, in its order. Calls take `CALL_SETTINGS` besides, such as ``rule``, ``budget`` and ``protect``.
    Lossless, the default, samples from the distribution of `llama_cpp.Llama`. Without ``num_speculative_tokens``, as
    much is proposed as pays on this machine (`AutoLength`). A call reuses the longest prefix shared with an
    earlier text.

    Processors of logits, grammars, penalties and biases apply to the target's and the draft's rows; processors must be
    functions of their arguments, because they see rows that are rejected. ``typical_p``, mirostat, ``draft_model``,
    ``embedding``, caches of states, handlers that read images, and ``reset=False`` are refused.

    Args:
        model_path: the target's file.
        draft: a file that ends in ``.gguf``, perhaps with settings as in ``draft.gguf:gpu_layers=10``, another model's
            name, ``suffix``, ``ngram``, or a `Drafter`.
        on_step: told of every step, after it.
        kept_prompts: see `Pair`.
        options: those of `llama_cpp.Llama`, and `CALL_SETTINGS` for calls that say nothing.

    Attributes:
        metrics: counts of the last response, and the seconds of its steps.
        pass_times: by which it chose what to propose, and their ``source``; None where it was told how much.
        choices: how likely each answer was, as `Choice`, where it was one of several.
        usage: its tokens, end tokens left out, by the names of completions.
        on_step: as given.

    Raises:
        TypeError: for a setting that is not known, or a value of the wrong type.
        ValueError: for a value out of range, a file that cannot be read, other tokens in the draft, or what is refused.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        draft: str | Path | Drafter = "suffix",
        on_step: StepReader | None = None,
        kept_prompts: int | str = 1,
        **options: Any,
    ) -> None:
        from cactus_decoding.core.metrics import Metrics
        from cactus_decoding.core.request import Request
        from cactus_decoding.engines.llama_cpp.models.weights import GgufWeights
        from cactus_decoding.engines.llama_cpp.runtime import pair_of

        self._defaults = {name: options.pop(name) for name in CALL_SETTINGS if name in options}
        # llama_cpp.Llama takes every name without a word
        known = signature(Llama.__init__).parameters
        if unknown := [name for name in options if name not in known]:
            raise TypeError(f"CactusLlama has no {unknown[0]!r}{suggestion(unknown[0], [*known, *CALL_SETTINGS])}")
        for name in ("draft_model", "embedding", "vocab_only"):
            if options.get(name):
                raise ValueError(f"CactusLlama takes no {name}" + (": give draft=" if name == "draft_model" else ""))
        if isinstance(options.get("chat_handler"), (Llava15ChatHandler, MTMDChatHandler)):
            raise ValueError("CactusLlama reads no images, which this chat_handler puts into llama.cpp's cache")
        Request.from_dict(self._defaults | {"temperature": 0.0})
        read_kept_prompts(kept_prompts)
        self._kept_prompts = kept_prompts
        # what a sliding window forgets cannot be rolled back to
        options.setdefault("swa_full", True)
        try:
            super().__init__(str(model_path), **options)
        except ValueError:
            GgufWeights.load("target", Path(model_path), gpu_layers=options.get("n_gpu_layers", 0))  # says why
            raise
        finalize(self, self._stack.close)  # at exit too, where llama_cpp.Llama comes too late for its own modules
        self.draft, self.on_step, self.metrics = draft, on_step, Metrics()
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        self.choices: tuple[Choice, ...] = ()
        self.pass_times: dict[str, Any] | None = None
        self._pair: Pair | None = pair_of(self, draft, kept_prompts)

    def prepare(self) -> None:
        """Measure what passes cost here, if that is not known; without, the first response waits for it."""
        if self._pair is None:
            raise ValueError("this CactusLlama is closed")
        if self._pair.chooses:
            from cactus_decoding.core.drafting.automatic import AutoLength

            self._pair.prepare(AutoLength())
            self.pass_times = self._pair.pass_times(AutoLength())

    def close(self) -> None:
        """Free the models; nothing can be generated afterwards."""
        self._pair = None
        if "_stack" in vars(self):  # llama_cpp.Llama also closes what was refused before it was made
            super().close()

    def forget(self) -> None:
        """Forget all texts: the next call reads its whole prompt."""
        if self._pair is not None:
            self._pair.forget()

    def eval(self, tokens: Sequence[int]) -> None:
        """Read tokens as `llama_cpp.Llama` does, which overwrites what was kept."""
        self.forget()
        super().eval(tokens)

    def load_state(self, state: Any) -> None:
        """Load a state as `llama_cpp.Llama` does, which overwrites what was kept."""
        self.forget()
        super().load_state(state)

    def set_cache(self, cache: Any) -> None:
        """Refuse a cache, which would know nothing of the draft's."""
        if cache is not None:
            raise ValueError("CactusLlama takes no cache of states: it keeps prompts itself, as kept_prompts says")

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments that make it again, as for `llama_cpp.Llama`."""
        theirs: dict[str, Any] = super().__getstate__()
        theirs |= {"draft": self.draft, "on_step": self.on_step, "kept_prompts": self._kept_prompts}
        return theirs | self._defaults

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        grammar: Any = None,
        **settings: Any,
    ) -> Generator[int]:
        """Yield the tokens of a response; what is wrong with the arguments is said before the first.

        They are those of `llama_cpp.Llama.generate`, of which ``tfs_z``, ``penalize_nl`` and the others of mirostat do
        nothing there either, and `CALL_SETTINGS`. An end token is the last one, and is yielded.
        """
        asked: Any = logits_processor
        if not isinstance(asked, CallProcessors):
            asked = CallProcessors(logits_processor or (), settings)
        if self._pair is None:
            raise ValueError("this CactusLlama is closed")
        refused = {"typical_p": typical_p != 1, "mirostat_mode": mirostat_mode != 0, "reset=False": not reset}
        if names := [name for name, given in refused.items() if given]:
            raise ValueError(
                f"CactusLlama does not do {names[0]}: it would not know the distribution that is sampled from"
            )
        sampling, penalties = (temp, top_k, top_p, min_p), (repeat_penalty, frequency_penalty, presence_penalty)
        response = begin_call(self._pair, self, tokens, asked, sampling, penalties, grammar)
        self.choices = ()
        return generated_tokens(response, self, stopping_criteria)

    def create_completion(self, *arguments: Any, **options: Any) -> Any:
        """Complete a prompt: the arguments are those of `llama_cpp.Llama.create_completion`, and `CALL_SETTINGS`.

        Args:
            arguments: by place, as for `llama_cpp.Llama`.
            options: by name; besides those of `llama_cpp.Llama` and `CALL_SETTINGS`, ``cancelled`` is a
                `threading.Event` with which another thread ends the response: it then raises `Cancelled`, and
                ``choices`` are answers of which the response is one, by the exact probability of each, and
                ``thinking_budget`` is how many tokens a model may think, after which its end mark is forced.
        """
        settings = {name: options.pop(name) for name in _CALL if name in options}
        given = _COMPLETION.bind(self, *arguments, **options).arguments
        del given["self"]
        processors = [*(given.get("logits_processor") or ())]
        if bias := given.pop("logit_bias", None):
            from cactus_decoding.engines.llama_cpp.sampling import LogitBias

            processors.append(LogitBias(bias, self.n_vocab()))
        max_tokens, stop = given.get("max_tokens", 16), given.get("stop")
        given["logits_processor"] = CallProcessors(processors, settings, max_tokens, stop)
        return super().create_completion(**given)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Complete a prompt: see `create_completion`."""
        return self.create_completion(*arguments, **options)

    def create_chat_completion(self, messages: Any, *arguments: Any, **options: Any) -> Any:
        """Answer a conversation: arguments are those of `llama_cpp.Llama.create_chat_completion`, and `CALL_SETTINGS`.

        ``cancelled``, ``choices`` and ``thinking_budget`` are as for `create_completion`.
        """
        settings = {name: options.pop(name) for name in _CALL if name in options}
        return Llama.create_chat_completion(_WithSettings(self, settings), messages, *arguments, **options)


class _WithSettings:
    """A `CactusLlama` for one conversation: chat formats call its completions, which then have the settings."""

    def __init__(self, llama: CactusLlama, settings: Mapping[str, Any]) -> None:
        self._llama, self._settings = llama, settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)

    def create_completion(self, *arguments: Any, **options: Any) -> Any:
        return self._llama.create_completion(*arguments, **options, **self._settings)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.create_completion(*arguments, **options)
