"""An OpenAI-compatible server as an engine."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from cactus_conform.engine import CUTS, END, PENALTIES, Engine, EngineAnswer, EngineError, Query, Sampling
from cactus_conform.models import gbnf, text_of, tokens_of

_FIELDS = (*CUTS, *PENALTIES)
_REPORT = "acceptance_report"  # asks servers of cactus-decoding how many proposals were kept
_SETTINGS: dict[str, Any] = {
    "model": None, "temperature_last": False, "penalises_prompt": True, "timeout": 30.0, "without": "", "supports": "",
    "at_once": 4, "draft": "good",
}  # fmt: skip


T = TypeVar("T")


class ServerEngine(Engine):
    """``/v1/completions`` of a server over the tiny target, whatever proposes there.

    A field that the server refuses is left out of the checks. Stop tokens are sent as texts. The address may lack
    ``/v1``; a key is taken from OPENAI_API_KEY.

    Settings: ``model``, its name; ``temperature_last`` and ``penalises_prompt``, see `Engine`; ``timeout`` of an answer
    in seconds; ``without``, fields that are never sent, with commas; ``supports``, what it supports besides, such as
    ``letters`` for llama.cpp's ``grammar``; ``at_once``, requests at a time; ``draft``, what proposes, by which reports
    name causes.

    Raises `EngineError` for a server that does not answer, and `ValueError` for an invalid setting.
    """

    ends_alike = True

    def __init__(self, address: str, settings: Mapping[str, Any] | None = None) -> None:
        given = dict(settings or {})
        if unknown := [name for name in given if name not in _SETTINGS]:
            known = ", ".join(_SETTINGS)
            raise ValueError(f"a server has no setting {unknown[0]!r}; known are {known}")
        given = _SETTINGS | given
        self._address = address.rstrip("/").removesuffix("/v1") + "/v1"
        self.name, self._timeout, self._at_once = address, float(given["timeout"]), int(given["at_once"])
        self.temperature_last, self.penalises_prompt = bool(given["temperature_last"]), bool(given["penalises_prompt"])
        self.drafts: Sequence[str] = (str(given["draft"]),)
        self._model = given["model"] or self._served()
        more, without = (str(given[name]).split(",") for name in ("supports", "without"))
        asked = {*_FIELDS, "logit_bias", "stop_token_ids", "logprobs"} - {*without}
        honoured = filter(self._honours, sorted(asked))
        self.supports = frozenset({*honoured, *more, "batch", "repeats", "cancels"} - {*without})
        self._counts = {_REPORT: True} if _REPORT not in without and self._takes({_REPORT: True}) else {}

    def answer(self, queries: Sequence[Query]) -> list[EngineAnswer]:
        with ThreadPoolExecutor(self._at_once) as pool:
            return list(pool.map(self.one, queries))

    def one(self, query: Query) -> EngineAnswer:
        body = self._body(query) | self._counts | ({"logprobs": 1} if "logprobs" in self.supports else {})
        if query.sampling.cancels:
            self._give_up(body | {"prompt": text_of((*query.prompt, 9, 8)), "max_tokens": 40})
        return self._read("/completions", body, "gave no answer over the tiny models", answer_of)

    def text(self, prompt: str, *, temperature: float, max_tokens: int, seed: int) -> str:
        body = {"model": self._model, "prompt": prompt, "temperature": temperature, "max_tokens": max_tokens}
        body["seed"] = seed
        return self._read("/completions", body, "gave no completion", lambda said: str(said["choices"][0]["text"]))

    def top_logprobs(self, prompt: str) -> dict[str, float] | None:
        body = {"model": self._model, "prompt": prompt, "temperature": 0, "max_tokens": 1, "logprobs": 2}
        try:
            answer = self._asked("/completions", body, refusable=True)
            return dict(answer["choices"][0]["logprobs"]["top_logprobs"][0])
        except (ValueError, KeyError, IndexError, TypeError):
            return None

    def _body(self, query: Query) -> dict[str, Any]:
        default, sampling = Sampling(), query.sampling
        body: dict[str, Any] = {"model": self._model, "prompt": text_of(query.prompt), "seed": query.seed}
        body |= {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
        body |= {name: getattr(sampling, name) for name in _FIELDS if getattr(sampling, name) != getattr(default, name)}
        if sampling.logit_bias:
            body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
        if sampling.stop_token_ids:
            body["stop"] = [text_of([token]) for token in sampling.stop_token_ids]
        if sampling.letters:
            body["grammar"] = gbnf(sampling.letters)
        return body

    def _served(self) -> str:
        return self._read("/models", None, "lists no model", lambda said: str(said["data"][0]["id"]))

    def _read(self, path: str, body: object, failed: str, read: Callable[[Any], T]) -> T:
        answer = self._asked(path, body)
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError) as error:
            raise EngineError(f"{self.name} {failed}: {_short(answer)}: {error}") from error

    def _honours(self, name: str) -> bool:
        """Whether a server takes a field; the checks find one that it ignores in silence."""
        value: Any = {"top_k": 3, "logit_bias": ((1, 1.0),), "stop_token_ids": (7,)}.get(name, 0.5)
        if name == "logprobs":
            return self._takes({"logprobs": 1}, lambda answer: _logprobs(answer["choices"][0]) is not None)
        return self._takes(self._body(Query((1, 2, 3), Sampling(**{name: value}, max_tokens=3), 0)))

    def _takes(self, fields: Mapping[str, Any], shows: Callable[[Any], bool] = lambda answer: True) -> bool:
        body = self._body(Query((1, 2, 3), Sampling(max_tokens=3), 0)) | dict(fields)
        try:
            return shows(self._asked("/completions", body, refusable=True))
        except (ValueError, LookupError, TypeError):
            return False

    def _request(self, path: str, body: object) -> urllib.request.Request:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        return urllib.request.Request(
            self._address + path, None if body is None else json.dumps(body).encode(), headers
        )

    def _asked(self, path: str, body: object, *, refusable: bool = False) -> Any:
        try:
            with urllib.request.urlopen(self._request(path, body), timeout=self._timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                said = _short(error.read().decode(errors="replace"))
            if refusable and error.code in (400, 422):
                raise ValueError(said) from error
            raise EngineError(f"{self.name} answered {error.code}: {said}") from error
        except TimeoutError as error:
            raise EngineError(f"{self.name} took more than {self._timeout:g} s to answer") from error
        except urllib.error.URLError as error:
            slow = isinstance(error.reason, TimeoutError)
            said = f"took more than {self._timeout:g} s to answer" if slow else f"cannot be reached: {error.reason}"
            raise EngineError(f"{self.name} {said}") from error
        except (ValueError, http.client.HTTPException, OSError) as error:
            raise EngineError(f"{self.name} gave an answer that is no JSON: {error}") from error

    def _give_up(self, body: Mapping[str, Any]) -> None:
        """Begin a stream, and close the connection after its first bytes."""
        try:
            request = self._request("/completions", {**body, "stream": True})
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                response.read(1)
        except OSError as error:
            raise EngineError(f"{self.name} cannot be reached: {error}") from error


def answer_of(said: Any) -> EngineAnswer:
    choice = said["choices"][0]
    tokens = tokens_of(choice["text"])
    accepted = (said.get("timings") or {}).get("draft_n_accepted")
    if report := ((said.get("metrics") or {}).get("speculative_decoding") or {}).get(_REPORT):
        accepted = sum(report["accepted_by_position"])
    return EngineAnswer(
        (*tokens, END) if choice["finish_reason"] == "stop" else tuple(tokens), _logprobs(choice), accepted
    )


def _logprobs(choice: Any) -> tuple[float, ...] | None:
    """Return log-probabilities of tokens from either of the forms that servers use."""
    given = choice.get("logprobs") or {}
    return tuple(given.get("token_logprobs") or [each["logprob"] for each in given.get("content") or ()]) or None


def _short(said: object) -> str:
    text = said if isinstance(said, str) else json.dumps(said)
    return " ".join(text.split())[:200]
