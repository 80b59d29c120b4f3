"""Answers by an OpenAI-compatible server, whatever runs behind it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.counters import REPORT_KEY
from cactus_decoding.core.declared import fields_of
from cactus_decoding.core.metrics import Metrics
from cactus_decoding.core.request import Request
from cactus_decoding.core.rules import Lossless
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.openai.bodies import MAX_BODY_SEED
from cactus_decoding.engines.openai.client import RefusedError, Reply, ServerClient, ServerError
from cactus_decoding.engines.openai.keys import RULE_KEY
from cactus_decoding.engines.vllm.extra_args import asked_of
from cactus_decoding.lab.evaluation.chat import Chat
from cactus_decoding.lab.evaluation.engines.engine import Answer, AuditedCosts, Conversation, Prompt, check_passed_on

XARGS = "vllm_xargs"
_NEUTRAL: dict[str, float] = {
    "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}  # fmt: skip
"""Fields that servers have other defaults of, or models: vLLM takes them from ``generation_config.json``."""
OPENAI_STOPS = 4
"""How many stops OpenAI's API takes, and vLLM's server."""
_TRIES = 2
"""How often a server that is not known yet is asked again."""
_USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
_COUNTS = ("steps", "drafted", "accepted", "relaxed", "recovered", "bonus")


class ServerEngine:
    """Finds out what a server takes, by a few requests of one token, and then asks it from several threads.

    A rule goes into each request, beside the other fields or in vLLM's ``vllm_xargs``. A server that answers a request
    with a rule that does not exist ignores rules, and is only asked losslessly.

    Args:
        client: of the server.
        model: its name; None for the only one that is served.

    Raises:
        ServerError: for a server that cannot be reached, or is not OpenAI-compatible.
        ValueError: for a model that it does not serve, or none where it serves several.
    """

    draft = "its own draft"
    """What result files call a draft that only the server knows."""

    def __init__(self, client: ServerClient, model: str | None = None) -> None:
        self._client = client
        self.model = _chosen(model, client)
        self._trial: tuple[str, dict[str, Any]] = ("", {})
        self._sampling: dict[str, float] = {}
        self._takes_rules: bool | None = None
        self._xargs = self.reports = self.counts = self._takes_few_stops = False
        self._usage = _USAGE

    def ask_by(self, chat: bool | None, system: str | None) -> Chat | None:
        """Return how prompts are asked: by the server's chat template unless it has none or ``chat`` is false.

        Raises `ValueError` for a chat that the server refuses, and a system message without a chat.
        """
        if chat is False and system is not None:
            raise ValueError("--system is the system message of a chat: give --chat too, or leave it out")
        found: Chat | None = None
        if chat is not False:
            try:
                self._begin(Conversation(("Hello.",), system))
                found = Chat(system)
            except (RefusedError, ServerError) as error:
                if chat or system is not None:
                    raise ValueError(f"{self._client.address} answers no chat: {error}") from None
        if found is None:
            try:
                self._begin("Question:")
            except RefusedError as error:
                raise ValueError(f"{self._client.address} answers no completion: {error}") from None
        self._learn()
        return found

    def _begin(self, prompt: Prompt) -> None:
        """Ask for one token, and for how many there were unless the server refuses that."""
        refusals = []
        for self._usage in (_USAGE, {}):
            self._trial = self._request(prompt, 1)
            try:
                self.counts = tokens_of(self._try({})) is not None
                return
            except RefusedError as error:
                refusals.append(error)
        raise refusals[0]

    def _learn(self) -> None:
        """Find out which fields the server takes."""
        self._sampling = dict(_NEUTRAL)
        if self._refuses(self._sampling):
            self._sampling = {name: value for name, value in _NEUTRAL.items() if not self._refuses({name: value})}
        for self._xargs in (False, True):
            self._takes_rules = bool(self._refuses(self._keys({RULE_KEY: "no such rule"}))) and not self._refuses(
                self._keys({RULE_KEY: "lossless"})
            )
            if self._takes_rules:
                break
        if self._takes_rules and not self._refuses(self._keys({REPORT_KEY: True})):
            self.reports = _report_of(self._try(self._keys({REPORT_KEY: True}))) is not None

    def found(self) -> dict[str, Any]:
        """Return what a result file says of the server."""
        rules = None if not self._takes_rules else XARGS if self._xargs else "fields"
        told = {"rules": rules, "reports": self.reports, "counts_tokens": self.counts}
        return {"address": self._client.address, "model": self.model} | told

    def check(self, request: Request) -> None:
        """Raise `ValueError` for what the server does not do, or refuses."""
        check_passed_on(request, "a server")
        request.check_chain("a server")
        budget = request.budget
        if request.verification != "token" or (
            budget is not None and (budget.expected_tokens, budget.max_relaxed) != (None, None)
        ):
            raise ValueError(
                "with --server, verification must be 'token', and a budget is neither paced nor counts tokens"
            )
        if not isinstance(request.rule, Lossless) and not self._takes_rules:
            raise ValueError(
                f"{self._client.address} takes no acceptance rules: it answers a request with a rule that does not "
                "exist as if nothing were asked; give --rule lossless only, or serve the model by cactus serve"
            )
        if said := self._refuses(self._asked(request)):
            raise ValueError(f"{self._client.address} refuses {request.rule}: {said}")

    def check_prompt(self, prompt: Prompt, request: Request) -> None:
        """Nothing is known of a prompt before the server reads it."""

    def answer(self, prompt: Prompt, request: Request) -> Answer:
        """Ask, and wait for the answer.

        Raises:
            RefusedError: for a prompt that the server refuses.
            ServerError: if it does not answer.
        """
        path, body = self._request(prompt, request.max_new_tokens)
        reply, left_out = self._ask(path, body | self._asked(request), request.stop)
        metrics, costs, unknown = counts_of(reply)
        text = cut_at(reply.text, left_out)
        return Answer(
            text,
            reply.finish_reason if text == reply.text else "stop",
            metrics,
            costs,
            unknown,
            first_seconds=reply.first_seconds,
            retries=reply.retries,
        )

    def _ask(self, path: str, body: dict[str, Any], stop: tuple[str, ...]) -> tuple[Reply, tuple[str, ...]]:
        """Return the reply, and the first stops, which were not sent if the server takes no more than OpenAI's does."""

        def asked(left_out: tuple[str, ...]) -> tuple[Reply, tuple[str, ...]]:
            return self._client.ask(path, body | {"stop": list(stop[len(left_out) :])}), left_out

        few, too_many = self._takes_few_stops, stop[:-OPENAI_STOPS]
        try:
            return asked(too_many if few else ())
        except RefusedError:
            if few or not too_many:
                raise
        answered = asked(too_many)
        self._takes_few_stops = True  # only now: the prompt may have been what was refused
        return answered

    def close(self) -> None:
        self._client.close()

    def _request(self, prompt: Prompt, max_tokens: int) -> tuple[str, dict[str, Any]]:
        body = {"model": self.model, "max_tokens": max_tokens} | self._usage
        if isinstance(prompt, str):
            return "/completions", body | {"prompt": prompt}
        messages = [{"role": "system", "content": prompt.system}] if prompt.system is not None else []
        for place, message in enumerate(prompt.messages):
            messages.append({"role": "assistant" if place % 2 else "user", "content": message})
        if prompt.begun:
            messages.append({"role": "assistant", "content": prompt.begun})
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        return "/chat/completions", body | {"messages": messages}

    def _asked(self, request: Request) -> dict[str, Any]:
        """Return the fields of a request that say how to decode."""
        values, defaults = vars(request.sampling), SamplingParams()
        given = {
            each.key: values[each.name]
            for each in fields_of(SamplingParams)
            if each.key in ("temperature", "top_p", *self._sampling)
            or values[each.name] != getattr(defaults, each.name)
        }
        fields = self._sampling | given | {"seed": (request.seed or 0) % (MAX_BODY_SEED + 1)}
        if not self._takes_rules:
            return fields
        return fields | self._keys(asked_of(request) | ({REPORT_KEY: True} if self.reports else {}))

    def _keys(self, keys: dict[str, Any]) -> dict[str, Any]:
        return {XARGS: keys} if self._xargs else keys

    def _try(self, more: Mapping[str, Any]) -> Reply:
        path, body = self._trial
        return self._client.ask(path, {**body, **more}, retries=_TRIES)

    def _refuses(self, more: Mapping[str, Any]) -> str:
        """Return why the server refuses some fields; nothing, if it takes them."""
        try:
            self._try(more)
        except RefusedError as error:
            return str(error)
        return ""


def cut_at(text: str, stop: Iterable[str]) -> str:
    r"""Return a text up to the first of some strings.

    >>> cut_at("return 1\nclass A:", ["\ndef", "\nclass"])
    'return 1'
    """
    return text[: min((place for place in map(text.find, stop) if place >= 0), default=len(text))]


def _chosen(model: str | None, client: ServerClient) -> str:
    served = client.models()
    if model is None and len(served) == 1:
        return served[0]
    known = ", ".join(served) or "none"
    if model is None:
        raise ValueError(f"{client.address} serves several models: give one as --target: {known}")
    if model not in served:
        raise ValueError(f"{client.address} serves no model {model!r}{suggestion(model, served)}; it serves {known}")
    return model


def _report_of(reply: Reply) -> dict[str, Any] | None:
    found = _speculation_of(reply).get(REPORT_KEY)
    return found if isinstance(found, dict) else None


def _speculation_of(reply: Reply) -> Mapping[str, Any]:
    return (reply.extra.get("metrics") or {}).get("speculative_decoding") or {}


def tokens_of(reply: Reply) -> int | None:
    """Return how many tokens a server says that an answer has; None where it does not, or cannot be right.

    A chunk of a stream may hold several tokens, or a part of one, so chunks are never counted.
    """
    usage, timings = reply.extra.get("usage") or {}, reply.extra.get("timings") or {}
    for told in (usage.get("completion_tokens"), timings.get("predicted_n")):
        if isinstance(told, int) and not isinstance(told, bool) and (told > 0 or (told == 0 and not reply.text)):
            return told
    return None


def counts_of(reply: Reply) -> tuple[Metrics, AuditedCosts | None, frozenset[str]]:
    """Return what a server told of an answer: counts, costs, and the names of the counts that it did not tell.

    Counts are those of this package's reports, of vLLM's metrics of a request, or of llama.cpp's timings.
    """
    told: dict[str, Any] = {}
    speculation, report, timings = _speculation_of(reply), _report_of(reply), reply.extra.get("timings") or {}
    told["generated"] = tokens_of(reply)
    if "num_draft_tokens" in speculation:  # vLLM does not count the step that reads the prompt
        told["steps"] = speculation["num_spec_steps"] + 1
        told |= {"drafted": speculation["num_draft_tokens"], "accepted": speculation["num_accepted_draft_tokens"]}
    elif report is not None:
        told |= {"steps": report.get("steps"), "drafted": sum(report["drafted_by_position"])}
        told["accepted"] = sum(report["accepted_by_position"])
    elif "predicted_n" in timings:
        told |= {"drafted": timings.get("draft_n", 0), "accepted": timings.get("draft_n_accepted", 0)}
        told["steps"] = timings["predicted_n"] - told["accepted"]
    costs = None
    if report is not None:
        told["relaxed"] = report["relaxed_tokens"]
        told |= _rejections(report, told)
        if report["nats"] is not None and report["verified_positions"] is not None:
            costs = AuditedCosts(report["verified_positions"], report["nats"], math.nan, math.nan)
    known = {name: value for name, value in told.items() if value is not None}
    unknown = frozenset({"generated", *_COUNTS} - set(known))
    return Metrics(**known, seconds=reply.seconds), costs, unknown


def _rejections(report: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, int]:
    """Return how many steps ended in a rejection and how many did not, where a report lets one know."""
    looked = [report[f"{name}_positions"] for name in ("verified", "protected", "fell_back")]
    steps, accepted = told["steps"], told["accepted"]
    if steps is None or None in looked or sum(looked) < accepted or (told["drafted"] and not sum(looked)):
        return {}
    recovered = sum(looked) - accepted
    return {"recovered": recovered, "bonus": steps - recovered}
