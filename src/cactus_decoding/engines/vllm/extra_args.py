"""What a request asks for by its extra arguments, what the server was started with, and which of them combine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from cactus_decoding.core.checks import check_integer, check_number, short_repr, suggestion
from cactus_decoding.core.counters import REPORT_KEY
from cactus_decoding.core.declared import build
from cactus_decoding.core.policy.budget import Budget
from cactus_decoding.core.policy.protection import Protection
from cactus_decoding.core.policy.relaxation import RelaxationPolicy, relaxation_policy
from cactus_decoding.core.policy.vocabulary import Vocabulary
from cactus_decoding.core.relaxed_logits import works_as_logits
from cactus_decoding.core.request import MAX_SEED, Request
from cactus_decoding.core.rules import RULES, Lossless, parse_rule
from cactus_decoding.core.rules.base import GreedyRule, Rule
from cactus_decoding.core.sampling.params import SamplingParams
from cactus_decoding.engines.openai.keys import ALLOWED, BUDGET_KEY, KEYS, NOT_FROM_CLIENTS, RULE_KEY, Marks, read_keys

logger = logging.getLogger("vllm.cactus_decoding")

LOSSLESS_RULE = "lossless"
GREEDY_BELOW = 1e-5  # vLLM takes the likeliest token at a lower temperature
METRICS_KEY, AUDIT_KEY = "acceptance_metrics", "audit_fraction"
CLIENTS_KEY = "client_rules"  # whether requests may ask for a rule and its settings
RULES_KEY = "outside_rules"  # rules by import path that requests may name, besides the default rule's
_OFFERED = tuple(name for name, rule in RULES.items() if works_as_logits(rule))
_BUDGET = {"budget_nats": BUDGET_KEY}
PROPOSALS_KEY = "num_speculative_tokens"  # the most proposals of a request that are verified in a step
VERIFICATION_KEY, COUPLED = "verification", "coupled"  # one text per seed; the other way is "token"
REQUEST_KEYS = (*KEYS, REPORT_KEY, PROPOSALS_KEY, VERIFICATION_KEY)
SERVER_KEYS = (*KEYS, METRICS_KEY, AUDIT_KEY, CLIENTS_KEY, RULES_KEY)


def request_of(
    asked: Mapping[str, Any] | None,
    default: Request | None = None,
    *,
    greedy: bool | None = None,
    thinking: Marks | None = None,
    any_pattern: bool = False,
) -> Request | None:
    """Read `KEYS` from a request's extra arguments and complete them from a default; None if nothing is asked for.

    Limits and seed are vLLM's own, so the returned `Request` leaves them out, and of sampling it says only whether the
    temperature is 0 (``greedy``; None: as the rule needs it). A default's rule that is for the other temperatures is
    left out. None is the same as leaving a key out. ``any_pattern`` allows what `read_keys` does then, and rules by any
    import path.
    """
    asked = asked or {}
    check_spelling(asked, SERVER_KEYS if any_pattern else REQUEST_KEYS)
    foreign = (name for name in NOT_FROM_CLIENTS if name not in REQUEST_KEYS)
    if wrong := [name for name in foreign if asked.get(name) is not None]:
        raise ValueError(f"{wrong[0]} does not work in vLLM: {ALLOWED}")
    if isinstance(asked.get(RULE_KEY), str):  # first, as this error lists what vLLM's sampler can follow
        _parse(asked[RULE_KEY], any_pattern)
    if greedy is not None and default is not None and isinstance(default.rule, GreedyRule) != greedy:
        default = default.replace(rule=LOSSLESS_RULE, sampling=_sampling(greedy))
    defaults = Request() if default is None else default
    settings = read_keys(asked, defaults.policy.as_dict(), thinking=thinking, any_pattern=any_pattern)
    if not settings:
        return default
    if default is None and "rule" not in settings:
        key, value = next((key, asked[key]) for key in KEYS if asked.get(key) is not None)
        raise ValueError(f"{key} is given ({short_repr(value)}) without {RULE_KEY}, and the server has no default rule")
    rule, nats = settings.pop("rule", None), {name: settings.pop(name) for name in [*settings] if name in _BUDGET}
    budget = build(Budget, nats, _BUDGET) if nats else defaults.budget
    others = {name: settings.pop(name) for name in [*settings] if name in Request.model_fields}
    policy = relaxation_policy(**defaults.policy.as_dict() | settings)
    rule = defaults.rule if rule is None else _parse(rule, any_pattern)
    sampling = _sampling(isinstance(rule, GreedyRule) if greedy is None else greedy)
    return defaults.replace(rule=rule, budget=budget, policy=policy, sampling=sampling, **others)


def _sampling(greedy: bool) -> SamplingParams:
    return SamplingParams(temperature=0.0) if greedy else SamplingParams()


def asked_of(request: Request) -> dict[str, Any]:
    """Return the keys and values that ask for a request's rule, budget and policy, without defaults."""
    nats, defaults = nats_of(request), RelaxationPolicy().as_dict()
    policy = {key: value for key, value in request.policy.as_dict().items() if value != defaults[key]}
    return {RULE_KEY: str(request.rule), **({BUDGET_KEY: nats} if math.isfinite(nats) else {}), **policy}


def check_spelling(given: Iterable[object], ours: tuple[str, ...]) -> None:
    """Raise `ValueError` for a key that is nearly one of ours or belongs elsewhere; other keys may be meant for others.

    Example:
        >>> check_spelling({"acceptance_rule": "lossless", "top_n": 3}, REQUEST_KEYS)
        >>> check_spelling({"acceptance_metrics": True}, REQUEST_KEYS)
        Traceback (most recent call last):
        ValueError: acceptance_metrics is a key of the server's --additional-config, not of a request
    """
    for key in given:
        if not isinstance(key, str) or key in ours:
            continue
        if key in SERVER_KEYS:
            raise ValueError(f"{key} is a key of the server's --additional-config, not of a request")
        if key in REQUEST_KEYS:
            raise ValueError(f"{key} is a key of a request, not of the server's --additional-config")
        close = suggestion(key, ours, cutoff=0.8)
        if close or key.startswith("acceptance_"):
            raise ValueError(f"there is no key {key!r}{close}")


def asks_for_report(asked: Mapping[str, Any] | None) -> bool:
    """Whether a request asks for a report; raise `TypeError` for other values (vLLM passes on 1 and 0)."""
    value = (asked or {}).get(REPORT_KEY)
    if value is not None and (not isinstance(value, bool | int) or value not in (0, 1)):
        raise TypeError(f"{REPORT_KEY} must be true or false, but is {short_repr(value)}")
    return bool(value)


def proposals_asked(asked: Mapping[str, Any] | None, most: int) -> int | None:
    """Return how many proposals per step a request lets the target verify; None if it leaves that to the server.

    Raises:
        TypeError: if the value is not an integer.
        ValueError: if it is negative, or more than the server's number ``most``, which is 0 without a draft.

    Example:
        >>> proposals_asked({"num_speculative_tokens": 2}, 4), proposals_asked(None, 4)
        (2, None)
        >>> proposals_asked({"num_speculative_tokens": 5}, 4)
        Traceback (most recent call last):
        ValueError: num_speculative_tokens must be between 0 and 4, but is 5
    """
    value = (asked or {}).get(PROPOSALS_KEY)
    return None if value is None else check_integer(PROPOSALS_KEY, value, 0, most)


def asks_for_coupling(asked: Mapping[str, Any] | None) -> bool:
    value = (asked or {}).get(VERIFICATION_KEY)
    if value is not None and value not in ("token", COUPLED):
        raise ValueError(f"{VERIFICATION_KEY} must be 'token' or {COUPLED!r} in vLLM, but is {short_repr(value)}")
    return bool(value == COUPLED)


def is_greedy(params: Any) -> bool:
    return bool(params.temperature < GREEDY_BELOW)


def nats_of(request: Request) -> float:
    return math.inf if request.budget is None else request.budget.limit


def is_lossless(request: Request) -> bool:
    return isinstance(request.rule, Lossless) or nats_of(request) == 0


def server_vocabulary(vllm_config: Any) -> Vocabulary | None:
    """Return the texts of the target's tokens; None if the server has no tokenizer, or an unsuitable one."""
    model = vllm_config.model_config
    try:
        from vllm.tokenizers import cached_tokenizer_from_config

        tokenizer = cached_tokenizer_from_config(model)
        return None if tokenizer is None else Vocabulary.of(tokenizer, model.get_vocab_size())
    except Exception as error:  # tokenizers are of many kinds, and one that is not needed must not end a server
        logger.warning("requests cannot protect tokens: the tokenizer does not say what tokens say: %s", error)
        return None


def protected_tokens(pattern: str, vocabulary: Vocabulary) -> Tensor:
    """Return the tokens that a pattern protects, ``[tokens]``; raise `ValueError` if it protects none or all."""
    # masks are kept by pattern and threshold, and of thresholds there are too many
    return Protection(pattern).mask(vocabulary).nonzero().squeeze(1)


def check_request_texts(asked: Request | None, vocabulary: Callable[[], Vocabulary | None]) -> None:
    if asked is not None and not is_lossless(asked):
        check_texts(asked.policy, vocabulary)


def check_texts(policy: RelaxationPolicy, vocabulary: Callable[[], Vocabulary | None]) -> None:
    """Raise `ValueError` if a policy needs the tokens' texts, and they are unknown (None) or do not fit."""
    if policy.protection is None and not policy.phases.reads_text:
        return
    words = vocabulary()
    if words is None:
        key = "relax_within" if policy.protection is None else "protect"
        raise ValueError(f"{key} needs a tokenizer that says what tokens say, and the server has none")
    if policy.protection is not None:
        protected_tokens(policy.protection.pattern, words)


def worker_request(params: Any, config: ServerConfig) -> Request | None:
    """Return what a worker does for a request, or None where vLLM's own verification is enough.

    The front end refuses bad values; one that gets here all the same is verified losslessly, because an exception in a
    worker ends the server.
    """
    greedy = is_greedy(params)
    try:
        asked, reports = config.read(params.extra_args, greedy)
    except (TypeError, ValueError) as error:
        logger.error("a request is verified losslessly: %s", error)
        return None
    if asked is None or isinstance(asked.rule, Lossless) or isinstance(asked.rule, GreedyRule) != greedy:
        return None  # at temperature 0 all other rules keep the likeliest token only, as vLLM does
    return asked if reports or nats_of(asked) > 0 else None  # a report says where a budget of 0 fell back


@lru_cache(maxsize=1024)
def _parse(spelling: str, importing: bool) -> Rule:
    try:
        rule = parse_rule(spelling, importing=importing, listed=_OFFERED)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{RULE_KEY}: {error}") from None
    if not works_as_logits(rule):
        raise ValueError(
            f"{RULE_KEY} {str(rule)!r} does not work in vLLM, whose own sampler cannot follow it; "
            f"rules that do are {', '.join(_OFFERED)}"
        )
    return rule


@dataclass(frozen=True)
class ServerConfig:
    """Our part of vLLM's configuration, with the keys of ``--additional-config``."""

    speculates: bool = True  # whether there is a draft
    num_speculative_tokens: int = 0  # proposals per step
    method: str = "standard"  # vLLM's ``rejection_sample_method``; rules work only with ``standard``
    watermarks: bool = False  # rules do not work with watermarked tokens
    default: Request | None = None  # for requests that ask for nothing (``acceptance_rule``, ``budget``, ...)
    metrics: bool = True  # count for Prometheus (``acceptance_metrics``)
    audit_fraction: float = 0.0  # part of the positions whose emitted nats are computed
    thinking: Marks | None = None  # the tokens around a thinking part, if a reasoning parser knows them
    uncoupled: str = ""  # why no request can be coupled; empty if they can
    client_rules: bool = True  # whether requests may choose a rule and what belongs to it (``client_rules``)

    @classmethod
    def of(cls, vllm_config: Any) -> ServerConfig:
        """Read vLLM's configuration; raise as `request_of` does, also for a rule that the server cannot follow."""
        speculative = vllm_config.speculative_config
        keys = vllm_config.additional_config if isinstance(vllm_config.additional_config, Mapping) else {}
        fraction = keys.get(AUDIT_KEY, 0.0)
        check_number(AUDIT_KEY, fraction, 0, 1)
        for spelling in keys.get(RULES_KEY) or ():
            parse_rule(spelling)
        thinking = _thinking_marks(getattr(vllm_config, "reasoning_config", None))
        config = cls(
            speculates=speculative is not None,
            num_speculative_tokens=0 if speculative is None else speculative.num_speculative_tokens,
            method="standard" if speculative is None else speculative.rejection_sample_method,
            watermarks=getattr(vllm_config, "watermark_config", None) is not None,
            default=request_of(keys, thinking=thinking, any_pattern=True),
            metrics=_switch(keys, METRICS_KEY),
            audit_fraction=float(fraction),
            thinking=thinking,
            uncoupled=_uncoupled(vllm_config),
            client_rules=_switch(keys, CLIENTS_KEY),
        )
        config.check(config.default)
        return config

    def read(self, asked: Mapping[str, Any] | None, greedy: bool = False) -> tuple[Request | None, bool]:
        """Return what a request asks for and whether it asks for a report; raise where the server does not allow it.

        ``greedy`` is whether its temperature is 0.
        """
        given = asked or {}
        closed = () if self.client_rules else (key for key in KEYS if given.get(key) is not None)
        if wrong := next((key for key in closed if (key, given[key]) != (RULE_KEY, LOSSLESS_RULE)), None):
            raise ValueError(
                f"{wrong} is not for requests here: the server was started with {CLIENTS_KEY} false, so they may ask "
                f"for {RULE_KEY} {LOSSLESS_RULE!r}, {REPORT_KEY}, {PROPOSALS_KEY} and {VERIFICATION_KEY} only"
            )
        proposals_asked(asked, self.num_speculative_tokens)
        asks_for_coupling(asked)
        if (reports := asks_for_report(asked)) and not self.speculates:
            raise ValueError(f"{REPORT_KEY} needs a draft, and the server runs without --speculative-config")
        request = request_of(asked, self.default, greedy=greedy, thinking=self.thinking)
        self.check(request)
        return request, reports

    def couples(self, params: Any) -> bool:
        """Whether a seed gives a request one text, whatever is proposed; raise where the server cannot do that."""
        if not asks_for_coupling(params.extra_args):
            return False
        coupled = f"{VERIFICATION_KEY} {COUPLED!r}"
        if self.uncoupled:
            raise ValueError(f"{coupled} {self.uncoupled}")
        asked = self.read(params.extra_args, is_greedy(params))[0]
        if asked is not None and not is_lossless(asked):
            raise ValueError(
                f"{coupled} is for lossless requests in vLLM, but {RULE_KEY} is {str(asked.rule)!r}: ask for "
                f"{LOSSLESS_RULE!r}"
            )
        if params.seed is None:
            raise ValueError(f"{coupled} needs a seed, and the request has none")
        check_integer("seed", params.seed, 0, MAX_SEED)
        return not is_greedy(params)  # else there is one text anyway

    def check(self, asked: Request | None) -> None:
        if asked is None or is_lossless(asked):
            return
        if not self.speculates:
            raise ValueError(f"{RULE_KEY} needs a draft, and the server runs without --speculative-config")
        if self.method != "standard":
            raise ValueError(f"{RULE_KEY} needs rejection_sample_method 'standard', but the server has {self.method!r}")
        if self.watermarks:
            raise ValueError(f"{RULE_KEY} does not work on a server that watermarks its tokens")


def _switch(keys: Mapping[str, Any], name: str) -> bool:
    value = keys.get(name, True)
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, but is {short_repr(value)}")
    return value


def _uncoupled(vllm_config: Any) -> str:
    if getattr(vllm_config, "use_v2_model_runner", False):
        return "needs vLLM's V1 runner: start the server with VLLM_USE_V2_MODEL_RUNNER=0"
    if getattr(getattr(vllm_config, "scheduler_config", None), "async_scheduling", False):
        return "must know how long the text is: start the server with --no-async-scheduling"
    speculative = vllm_config.speculative_config
    if speculative is not None and speculative.rejection_sample_method != "standard":
        return f"needs rejection_sample_method 'standard', but the server has {speculative.rejection_sample_method!r}"
    return ""


def _thinking_marks(reasoning_config: Any) -> Marks | None:
    opening = getattr(reasoning_config, "reasoning_start_token_ids", None)
    closing = getattr(reasoning_config, "natural_reasoning_end_token_ids", None)
    return (tuple(opening), tuple(closing)) if opening and closing else None
