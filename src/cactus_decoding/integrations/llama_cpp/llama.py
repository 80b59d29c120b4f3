"""A `llama_cpp.Llama` that drafts and verifies."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from llama_cpp import Llama
from llama_cpp.llama_chat_format import Llava15ChatHandler, MTMDChatHandler

from cactus_decoding.arguments.checks import check_integer
from cactus_decoding.arguments.knobs import settings_of
from cactus_decoding.arguments.values import suggestion
from cactus_decoding.drafting.automatic import AutoLength
from cactus_decoding.drafting.model import ModelDrafter
from cactus_decoding.drafting.registry import DRAFTERS, LOOK_UP, parse_drafter
from cactus_decoding.generation.loop import decode
from cactus_decoding.generation.metrics import Metrics
from cactus_decoding.generation.pair import Pair
from cactus_decoding.generation.request import Request
from cactus_decoding.generation.settings import DECODING, PARTS, with_usual_proposals
from cactus_decoding.integrations.llama_cpp.calls import CallProcessors, InterruptibleContext, ScoredModel
from cactus_decoding.integrations.llama_cpp.grammar import GrammarMask
from cactus_decoding.integrations.llama_cpp.sampling import (
    LlamaSampling,
    LogitBias,
    Penalties,
    row_processor,
    without_penalties,
)
from cactus_decoding.models.llama_cpp.model import LlamaCppModel
from cactus_decoding.models.llama_cpp.settings import USUAL_CONTEXT_SIZE, GgufFile, parse_gguf
from cactus_decoding.models.llama_cpp.tokenizer import GgufTokenizer
from cactus_decoding.models.llama_cpp.weights import GgufModel
from cactus_decoding.models.loading import check_model_name, load_cached, load_tokenizer
from cactus_decoding.models.tokenizers import check_same_vocabulary
from cactus_decoding.types import Drafter, Outcome

SETTINGS = ("budget", *(name for group in DECODING for name in settings_of(PARTS[group])))
"""What a call, and the constructor for all calls, takes besides: names of `Request`."""
_RANDOM_SEED = 2**32 - 1
"""``LLAMA_DEFAULT_SEED``, with which llama.cpp draws a seed."""
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")
_COMPLETION = signature(Llama.create_completion)
StepReader = Callable[[Request, Outcome], None]


class CactusLlama(Llama):
    """llama-cpp-python's class with this package's loop in the place of its own: draft, verify, relax.

    Whatever makes texts goes through `generate`: completions, chat formats, function calls, streams. Sampling is
    llama.cpp's, in its order. Calls take `SETTINGS` besides, such as ``rule``, ``budget`` and ``protect``; lossless,
    the default, emits what `llama_cpp.Llama` would, by the same law. How much is proposed is what pays on this machine
    (`AutoLength`), unless ``num_speculative_tokens`` says. A call reads on behind what it shares with an earlier text.

    Processors of logits, grammars, penalties and biases apply to the target's and the draft's rows; processors must be
    functions of their arguments, because they see rows that are rejected. ``typical_p``, mirostat, ``draft_model``,
    ``embedding``, caches of states, handlers that read images, and ``reset=False`` are refused.

    Args:
        model_path: the target's file.
        draft: a file that ends in ``.gguf``, perhaps with settings as in ``draft.gguf:gpu_layers=10``, another model's
            name, ``suffix``, ``ngram``, or a `Drafter`.
        on_step: told of every step, after it.
        kept_prompts: see `Pair`.
        options: those of `llama_cpp.Llama`, and `SETTINGS` for calls that say nothing.

    Attributes:
        metrics: counts of the last response, and the seconds of its steps.
        pass_times: by which it chose what to propose, and their ``source``; None where it was told how much.
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
        draft: str | Path | Drafter = LOOK_UP,
        on_step: StepReader | None = None,
        kept_prompts: int = 1,
        **options: Any,
    ) -> None:
        self._usual = {name: options.pop(name) for name in SETTINGS if name in options}
        # llama_cpp.Llama takes every name without a word
        known = signature(Llama.__init__).parameters
        if unknown := [name for name in options if name not in known]:
            raise TypeError(f"CactusLlama has no {unknown[0]!r}{suggestion(unknown[0], [*known, *SETTINGS])}")
        for name in ("draft_model", "embedding", "vocab_only"):
            if options.get(name):
                raise ValueError(f"CactusLlama takes no {name}" + (": give draft=" if name == "draft_model" else ""))
        if isinstance(options.get("chat_handler"), (Llava15ChatHandler, MTMDChatHandler)):
            raise ValueError("CactusLlama reads no images, which this chat_handler puts into llama.cpp's cache")
        Request.from_dict(self._usual | {"temperature": 0.0})
        self._kept_prompts = check_integer("kept_prompts", kept_prompts, 0)
        # what a sliding window forgets cannot be rolled back to
        options.setdefault("swa_full", True)
        try:
            super().__init__(str(model_path), **options)
        except ValueError:
            GgufModel.load("target", Path(model_path), gpu_layers=options.get("n_gpu_layers", 0))  # says why
            raise
        finalize(self, self._stack.close)  # at exit too, where llama_cpp.Llama comes too late for its own modules
        self.draft, self.on_step, self.metrics = draft, on_step, Metrics()
        self.usage = dict.fromkeys(_USAGE, 0)
        self.pass_times: dict[str, Any] | None = None
        self._weights = GgufModel("target", model_path, self.model)
        tokenizer = GgufTokenizer(self._weights)
        self._context = InterruptibleContext(self._weights, self.ctx)
        target = ScoredModel(self._weights, self._context, self.scores if self._logits_all else None)
        drafter = self._load(draft, target, tokenizer)
        self._pair: Pair | None = Pair(target, drafter, tokenizer, kept_prompts=kept_prompts)

    @classmethod
    def open(cls, file: GgufFile, draft: str | Path | Drafter, **settings: Any) -> CactusLlama:
        """Open a file by its settings, as `load_pair` reads them; ``settings`` are those of calls that say nothing."""
        read = file.settings
        weights = GgufModel.load("target", file.path, vocab_only=True)
        precise: dict[str, Any] = {"type_k": 0, "type_v": 0} if read.cache == "float32" else {}
        threads = read.threads or torch.get_num_threads()
        return cls(
            file.path,
            draft=draft,
            n_ctx=read.context_size or min(weights.trained_length, USUAL_CONTEXT_SIZE),
            n_gpu_layers=read.gpu_layers,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=read.cache == "float16",
            verbose=False,
            **precise,
            **settings,
        )

    def _load(self, draft: str | Path | Drafter, target: LlamaCppModel, tokenizer: GgufTokenizer) -> Drafter:
        """Return what drafts, with the target's threads and a context as long."""
        if isinstance(draft, Drafter):
            return draft
        named = parse_drafter(draft) if isinstance(draft, str) else None
        if named is not None:
            return named.drafter(target.model)
        check_model_name("draft", draft, DRAFTERS)
        check_same_vocabulary(tokenizer, load_tokenizer("draft", draft), target.name, str(draft))
        file = parse_gguf(draft)
        if file is None:
            return ModelDrafter(load_cached("draft", draft, "auto", target.device), target.vocabulary_size)
        settings = file.settings
        weights = GgufModel.load("draft", file.path, gpu_layers=settings.gpu_layers)
        size = settings.context_size or min(weights.trained_length, self.n_ctx())
        settings = replace(settings, context_size=size, threads=settings.threads or self.n_threads)
        return ModelDrafter(LlamaCppModel(weights, settings, copies=False), target.vocabulary_size)

    def prepare(self) -> None:
        """Measure what passes cost here, if that is not known; without, the first response waits for it."""
        if self._pair is None:
            raise ValueError("this CactusLlama is closed")
        if self._pair.chooses:
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
        return theirs | self._usual

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
        nothing there either, and `SETTINGS`. An end token is the last one, and is yielded.
        """
        asked: Any = logits_processor
        if not isinstance(asked, CallProcessors):
            asked = CallProcessors(logits_processor or (), settings)
        if self._pair is None:
            raise ValueError("this CactusLlama is closed")
        refused = {"typical_p": typical_p != 1, "mirostat_mode": mirostat_mode != 0, "reset=False": not reset}
        if names := [name for name, given in refused.items() if given]:
            raise ValueError(f"CactusLlama does not do {names[0]}: it would not know the law that is sampled from")
        prompt_ids = [int(token) for token in tokens]
        if not prompt_ids:
            raise ValueError("prompt must have at least one token, but has none")
        processors = [each if isinstance(each, LogitBias) else row_processor(each) for each in asked]
        penalties = repeat_penalty, frequency_penalty, presence_penalty
        if not without_penalties(*penalties):
            processors.append(Penalties(len(prompt_ids), self.last_n_tokens_size, *penalties))
        if grammar is not None:
            processors.append(GrammarMask(self._weights, grammar, len(prompt_ids)))
        sampling = LlamaSampling(temp, top_k, top_p, min_p, processors)
        settings = with_usual_proposals(self._usual | asked.settings, automatic=self._pair.chooses)
        seed = None if self._seed < 0 or self._seed == _RANDOM_SEED else int(self._seed)
        settings |= {"temperature": 0.0 if temp == 0 else 1.0, "seed": seed}
        request = Request.from_dict(settings)
        request.check_room(self._pair.target.max_length, self._pair.drafter.max_length, len(prompt_ids))
        request.check_drafter(self._pair.drafter)
        return self._respond(self._pair, prompt_ids, request, sampling, asked, stopping_criteria)

    def _respond(
        self,
        pair: Pair,
        prompt_ids: list[int],
        request: Request,
        sampling: LlamaSampling,
        asked: CallProcessors,
        stopping_criteria: Any,
    ) -> Generator[int]:
        generator = torch.Generator()
        generator.manual_seed(generator.seed() if request.seed is None else request.seed)
        policy = request.spending.fit(pair.tokenizer, pair.target.vocabulary_size)
        max_length, ends = self.n_ctx(), frozenset(pair.stop_token_ids)
        if asked.max_tokens is not None and asked.max_tokens > 0:
            max_length = min(max_length, len(prompt_ids) + asked.max_tokens)
        outcomes = decode(
            pair.target,
            pair.drafter,
            prompt_ids,
            request.verifier(sampling, sampling.untempered, sampling.plain, policy),
            sampling,
            length=request.draft_length,
            max_length=max_length,
            stopping_criteria=lambda token_ids: token_ids[-1] in ends,
            generator=generator,
        )
        self.metrics, written = Metrics(), 0
        self.input_ids[: len(prompt_ids)] = prompt_ids
        reservation, self.n_tokens = pair.reserve(), len(prompt_ids)
        self._context.cancelled = asked.cancelled
        try:
            began = time.perf_counter()
            for outcome in outcomes:
                self.metrics += replace(Metrics.of(outcome), seconds=time.perf_counter() - began)
                if self.on_step is not None:
                    self.on_step(request, outcome)
                for i, token in enumerate(outcome.token_ids):
                    if stopping_criteria is not None and stopping_criteria(
                        self._input_ids, outcome.rows.logits[i].numpy()
                    ):
                        return
                    written += token not in ends
                    counts = len(prompt_ids), written, len(prompt_ids) + written
                    self.usage = dict(zip(_USAGE, counts, strict=True))
                    yield token
                    self.input_ids[self.n_tokens] = token
                    self.n_tokens += 1
                began = time.perf_counter()
        finally:
            reservation.active, self._requires_eval = False, True
            self.pass_times = pair.pass_times(request.draft_length)

    def create_completion(self, *arguments: Any, **options: Any) -> Any:
        """Complete a prompt: the arguments are those of `llama_cpp.Llama.create_completion`, and `SETTINGS`.

        Args:
            arguments: by place, as for `llama_cpp.Llama`.
            options: by name; besides those of `llama_cpp.Llama` and `SETTINGS`, ``cancelled`` is a
                `threading.Event` with which another thread ends the response: it then raises `Cancelled`.
        """
        settings = {name: options.pop(name) for name in (*SETTINGS, "cancelled") if name in options}
        given = _COMPLETION.bind(self, *arguments, **options).arguments
        del given["self"]
        processors = [*(given.get("logits_processor") or ())]
        if bias := given.pop("logit_bias", None):
            processors.append(LogitBias(bias, self.n_vocab()))
        given["logits_processor"] = CallProcessors(processors, settings, given.get("max_tokens", 16))
        return super().create_completion(**given)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Complete a prompt: see `create_completion`."""
        return self.create_completion(*arguments, **options)

    def create_chat_completion(self, messages: Any, *arguments: Any, **options: Any) -> Any:
        """Answer a conversation: the arguments are those of `llama_cpp.Llama.create_chat_completion`, and `SETTINGS`.

        ``cancelled`` is as for `create_completion`.
        """
        settings = {name: options.pop(name) for name in (*SETTINGS, "cancelled") if name in options}
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
