"""A request's choices in the JSON of OpenAI's completions and conversations, whole and bit by bit."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

from cactus_decoding.core.checks import PromptTooLongError
from cactus_decoding.core.constraints.base import Constraint, Grammar
from cactus_decoding.core.constraints.matching import GrammarVocabulary
from cactus_decoding.core.constraints.thinking import Thinking
from cactus_decoding.core.counters import REPORT_KEY, ResponseCounts
from cactus_decoding.core.loop import StoppingCriteria
from cactus_decoding.core.models.tokenizers import conversation_prompt
from cactus_decoding.core.pair import Pair
from cactus_decoding.core.request import Request
from cactus_decoding.core.response import Response
from cactus_decoding.core.types import Outcome
from cactus_decoding.engines.llama_cpp.answering import Piece, StepReader, TokenLogprobs, begin_gguf, pieces, text_of
from cactus_decoding.engines.llama_cpp.sampling import EndsLater, LogitBias, Penalties, RowProcessor
from cactus_decoding.engines.llama_cpp.server.call_grammar import NO_MARKS, CallMarks
from cactus_decoding.engines.llama_cpp.server.effort import NO_EFFORT, Effort
from cactus_decoding.engines.llama_cpp.server.tools import Tools, form_of, forms_of
from cactus_decoding.engines.openai.bodies import ChatBody, CompletionBody
from cactus_decoding.engines.openai.keys import Marks, errors_about
from cactus_decoding.engines.openai.tool_calls import CallReader


@dataclass(frozen=True)
class CompletionParams:
    body: CompletionBody | ChatBody
    request: Request  # of the first choice
    tools: Tools | None
    grammar: Grammar | None  # of the answer; None where anything may be written, or one of some choices
    # answers of which it is one, by the exact probability of each; None for any other
    choices: tuple[str, ...] | None = None
    marks: CallMarks = NO_MARKS  # of the model's calls
    effort: Effort = NO_EFFORT

    @property
    def visible(self) -> frozenset[int]:
        """Tokens without a text that are shown, because they are marks of calls."""
        return frozenset(self.marks.special.values()) if self.tools is not None else frozenset()

    def check_ends(self) -> None:
        """Raise `ValueError` where the answer has to go on, but something else says where it ends."""
        held = [name for name in ("min_tokens", "ignore_eos") if getattr(self.body, name)]
        formed = self.grammar is not None or self.choices is not None
        if held and (formed or (self.body.stop and held[0] == "min_tokens")):
            other = "a form or tools" if formed else "stop"
            raise ValueError(f"{held[0]} and {other} exclude each other: both say where the answer may end")

    def reader(self) -> CallReader | None:
        """Return what finds calls in a choice; None where there are no tools."""
        return None if self.tools is None else self.tools.reader(self.marks, formed=bool(forms_of(self.body.given)))

    @property
    def chat(self) -> bool:
        return isinstance(self.body, ChatBody)

    def request_of(self, index: int) -> Request:
        """Return what is asked for one of the choices of all prompts, which have one seed after the other."""
        further, request = index % self.body.n, self.request
        return request.replace(seed=request.seed + further) if further and request.seed is not None else request


def read_completion(
    given: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    chat: bool,
    pair: Pair | None = None,
    marks: CallMarks = NO_MARKS,
    thinking: Marks | None = None,
) -> CompletionParams:
    """Return what a body asks of a pair; ``defaults`` are the server's own settings."""
    body = (ChatBody if chat else CompletionBody).read(given)
    request, tools = body.request(defaults, pair, thinking=thinking), Tools.of(body.given)
    form = form_of(body.given, tools, marks)
    grammar, choices = (form, None) if form is None or isinstance(form, Grammar) else (None, form)
    effort = NO_EFFORT
    if pair is not None and isinstance(body, ChatBody) and body.reasoning_effort is not None:
        with errors_about("reasoning_effort"):
            effort = Effort.of(body.reasoning_effort, body.chat_template_kwargs, pair.tokenizer)
    answered = CompletionParams(body, request, tools, grammar, choices, marks, effort)
    answered.check_ends()
    return answered


class Completion:
    """What a request is answered; choices are made one after another, and go on from a prompt that they share."""

    def __init__(
        self,
        pair: Pair,
        asked: CompletionParams,
        prompts: list[list[int]],
        model: str,
        on_step: StepReader = lambda *_: None,
        constraint: Constraint | None = None,
    ) -> None:
        self._asked, self._on_step, self._pair = asked, on_step, pair
        self._num_read, self._num_cached = sum(map(len, prompts)), 0
        self._responses = [
            response_to(pair, asked, prompts[index // asked.body.n], index, constraint if index == 0 else None)
            for index in range(len(prompts) * asked.body.n)
        ]
        self._counts = [ResponseCounts() for _ in self._responses]
        self._warning = asked.request.warning
        if self._warning is not None:
            _log_once(self._warning)
        kind = "chat.completion" if asked.chat else "text_completion"
        self._head = {
            "id": ("chatcmpl-" if asked.chat else "cmpl-") + secrets.token_hex(16),
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, response in enumerate(self._responses):
            made = [*self._pieces(index)]
            text = "".join(piece.text for piece in made)
            logprobs = [each for piece in made for each in piece.logprobs]
            reasoning = "".join(piece.reasoning for piece in made).lstrip("\n")
            finish_reason = made[-1].finish_reason
            if self._asked.chat:
                said = self._message(text, reasoning, stopped=finish_reason == "stop")
            else:
                said = {"text": self._echo(index) + text}
            called = "tool_calls" in said.get("message", {})
            finish_reason = "tool_calls" if called and finish_reason == "stop" else finish_reason
            told = {"logprobs": self._logprobs(logprobs), "finish_reason": finish_reason}
            choices.append({"index": index} | said | told | _probabilities(response))
        return self._head | {"choices": choices, "usage": self._usage} | self._metrics

    def chunks(self) -> Generator[dict[str, Any]]:
        """Yield the answer bit by bit; the usage comes last, where it was asked for. Closing it frees the pair."""
        head = self._head | {"object": "chat.completion.chunk"} if self._asked.chat else self._head
        for index, response in enumerate(self._responses):
            last = response is self._responses[-1] and not self._asked.body.stream_options.include_usage
            with closing(self._pieces(index)) as made:
                for choice in self._deltas(made) if self._asked.chat else self._texts(made, self._echo(index)):
                    choice |= _probabilities(response) if choice["finish_reason"] else {}
                    chunk = head | {"choices": [{"index": index} | choice]}
                    yield chunk | (self._metrics if last and choice["finish_reason"] else {})
        if self._asked.body.stream_options.include_usage:
            yield head | {"choices": [], "usage": self._usage} | self._metrics

    def _pieces(self, index: int) -> Generator[Piece]:
        begun, asked = False, self._asked

        def on_step(request: Request, outcome: Outcome) -> None:
            nonlocal begun
            if not begun and index % asked.body.n == 0:  # further choices go on from the same prompt
                self._num_cached += self._pair.target.num_reused
            begun = True
            self._on_step(request, outcome)
            self._counts[index].add(outcome)

        response = self._responses[index]
        return pieces(response, on_step, asked.body.num_logprobs, apart=asked.chat, visible=asked.visible)

    def _texts(self, made: Iterator[Piece], echo: str) -> Iterator[dict[str, Any]]:
        for piece in made:
            logprobs = self._logprobs(piece.logprobs)
            yield {"text": echo + piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}
            echo = ""

    def _deltas(self, made: Iterator[Piece]) -> Iterator[dict[str, Any]]:
        """Yield the parts of a message: its reasoning, its text and calls as they grow, and why it ended."""
        begun, held, thinks, reader = False, list[TokenLogprobs](), False, self._asked.reader()
        for piece in made:
            if not begun:
                begun = True
                yield _delta({"role": "assistant", "content": ""})
            logprobs, done = piece.logprobs, piece.finish_reason is not None
            if reasoning := piece.reasoning if thinks else piece.reasoning.lstrip("\n"):
                thinks = True
                yield _delta({"reasoning_content": reasoning}, None if piece.text else self._logprobs(logprobs))
                if not piece.text:
                    logprobs = []
                    if not done:
                        continue
            held = held + logprobs
            parts: list[Any] = [piece.text] if reader is None else reader.more(piece.text, done=done) or [""] * done
            with_text = next((place for place, part in enumerate(parts) if isinstance(part, str)), 0)
            for place, part in enumerate(parts):
                told = held if place == with_text else []
                if part or told:
                    yield _delta(
                        {"content": part} if isinstance(part, str) else self._called([part]), self._logprobs(told)
                    )
            held = [] if parts else held
            if done:
                stopped = reader is not None and reader.number and not reader.is_cut and piece.finish_reason == "stop"
                yield _delta({}, None, "tool_calls" if stopped else piece.finish_reason)

    def _message(self, text: str, reasoning: str, *, stopped: bool) -> dict[str, Any]:
        """Return a message; a call that a stop string cut is no part of it."""
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if (reader := self._asked.reader()) is not None:
            message["content"], calls = reader.whole(text)
            if stopped and reader.is_cut:
                calls.pop()
                message["content"] = message["content"] or ""
            message |= self._called(calls) if calls else {}
        return {"message": message | ({"reasoning_content": reasoning} if reasoning else {})}

    def _called(self, calls: list[dict[str, Any]]) -> dict[str, Any]:
        legacy = self._asked.tools is not None and self._asked.tools.legacy
        return {"tool_calls": calls} | ({"function_call": calls[0]["function"]} if legacy else {})

    def _logprobs(self, logprobs: list[TokenLogprobs]) -> dict[str, Any] | None:
        if self._asked.body.num_logprobs is None:
            return None
        if self._asked.chat:
            content = [
                _entry(each.token, each.logprob) | {"top_logprobs": [_entry(*other) for other in each.top]}
                for each in logprobs
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [text_of(each.token) for each in logprobs],
            "token_logprobs": [each.logprob for each in logprobs],
            "top_logprobs": [{text_of(token): value for token, value in each.top} for each in logprobs],
            "text_offset": [each.start for each in logprobs],
        }

    def _echo(self, index: int) -> str:
        body = self._asked.body
        if isinstance(body, ChatBody) or not body.echo:
            return ""
        given = body.prompt[index // body.n]
        return given if isinstance(given, str) else self._pair.tokenizer.decode(given)

    @property
    def _usage(self) -> dict[str, Any]:
        ends = frozenset(self._pair.stop_token_ids)  # which are left out
        written = [[token for token in response.token_ids if token not in ends] for response in self._responses]
        read, number = self._num_read, sum(map(len, written))
        thought = sum(map(self._num_thought, self._responses, written)) if self._asked.chat else 0
        return {
            "prompt_tokens": read,
            "completion_tokens": number,
            "total_tokens": read + number,
            "prompt_tokens_details": {"cached_tokens": self._num_cached},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }

    def _num_thought(self, response: Response, token_ids: list[int]) -> int:
        thinking = Thinking.of(self._pair.tokenizer, response.prompt_token_ids)
        return 0 if thinking is None else len(thinking.thought(token_ids))

    @property
    def _metrics(self) -> dict[str, Any]:
        """The report, where vLLM's responses have it too; of several choices a list."""
        if not self._asked.body.acceptance_report:
            return {}
        told = {} if self._warning is None else {"warning": self._warning}
        reports = [counts.report() | told for counts in self._counts]
        return {"metrics": {"speculative_decoding": {REPORT_KEY: reports[0] if len(reports) == 1 else reports}}}


@cache
def _log_once(warning: str) -> None:
    logging.getLogger(__name__).warning("of a request: %s", warning)


def _probabilities(response: Response) -> dict[str, Any]:
    choices = [choice.as_dict() for choice in response.choices]
    return {"choice_probabilities": choices} if choices else {}


def _delta(
    delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    return {"delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _entry(token: bytes, logprob: float) -> dict[str, Any]:
    return {"token": text_of(token), "logprob": logprob, "bytes": [*token]}


def prompts_of(pair: Pair, asked: CompletionParams) -> list[list[int]]:
    """Return a request's prompts in tokens; raise `ValueError` for one that the model cannot read."""
    tokenizer: Any = pair.tokenizer
    body = asked.body
    texts = [_conversation(tokenizer, body, asked)] if isinstance(body, ChatBody) else body.prompt
    prompts = [_tokens(pair, text) if isinstance(text, str) else text for text in texts]
    if any(not ids or max(ids) >= pair.target.vocabulary_size for ids in prompts):
        raise ValueError(f"prompt must be tokens from 0 to {pair.target.vocabulary_size - 1}, and at least one of them")
    return prompts


def _tokens(pair: Pair, text: str) -> list[int]:
    """Return a text's tokens; what cannot fit is refused before it is read, which takes time and memory."""
    tokenizer: Any = pair.tokenizer
    window = pair.target.max_length
    if window is not None and len(text) > window * tokenizer.longest:
        raise PromptTooLongError(
            f"the prompt must be shorter than the target's {window} positions, but has {len(text):,} characters"
        )
    return list(tokenizer(text).input_ids)


def _conversation(tokenizer: Any, body: ChatBody, asked: CompletionParams) -> str:
    """Return a conversation as the model's template writes it; tools stand in a system message where it has none."""
    messages = [message.as_dict() for message in body.messages]
    options = body.template_options | asked.effort.options
    untold, tools = conversation_prompt(tokenizer, messages, **options), asked.tools
    if tools is None:
        return untold
    prompt = conversation_prompt(tokenizer, messages, **options, tools=tools.described)
    if prompt != untold:
        return prompt
    told = conversation_prompt(tokenizer, tools.told_in(messages), **options)
    if Tools.END in told:
        return told
    if not tools.forced:  # a forced call has its form from the schema
        raise ValueError(
            "the model's chat template has no place for tools, nor for a system message that describes them: leave "
            "tools out, or give a tool_choice that names one"
        )
    return prompt


def response_to(
    pair: Pair, asked: CompletionParams, prompt_ids: list[int], index: int = 0, constraint: Constraint | None = None
) -> Response:
    body = asked.body
    size, ends = pair.target.vocabulary_size, [*pair.stop_token_ids, *body.stop_token_ids]
    if any(token >= size for token in body.stop_token_ids):
        raise ValueError(f"stop_token_ids must be from 0 to {size - 1}, but one is {max(body.stop_token_ids)}")
    processors: list[RowProcessor] = [LogitBias(body.logit_bias, size)] if body.logit_bias else []
    if body.repetition_penalty != 1:
        processors.append(Penalties(0, -1, body.repetition_penalty, 0.0, 0.0))
    if body.ignore_eos or body.min_tokens:
        processors.append(EndsLater(ends, len(prompt_ids), None if body.ignore_eos else body.min_tokens))
    if constraint is None and asked.grammar is not None:
        constraint = GrammarVocabulary.of(pair.tokenizer, size, pair.stop_token_ids).constraint(asked.grammar)
    return begin_gguf(
        pair,
        asked.request_of(index),
        prompt_ids,
        processors,
        body.penalties,
        constraint=constraint,
        choices=asked.choices,
        thinking_budget=body.thinking_budget if asked.effort.budget is None else asked.effort.budget,
        stop=StoppingCriteria(ends, asked.request.stop, pair.tokenizer, len(prompt_ids)),
    )
