"""lm-evaluation-harness: a model class for its generation tasks, registered as ``cactus``."""

from __future__ import annotations

from typing import Any

from cactus_decoding.lab.evaluation.engines.engine import Answer, Engine
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.zoo import BUNDLED, full_name

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:  # without the extra 'eval' the class cannot be used, but the module can be imported
    LM = object

    def register_model(*names: str) -> Any:
        """Register nothing."""
        return lambda model: model


@register_model("cactus")
class CactusLM(LM):  # type: ignore[untyped-decorator, unused-ignore]
    """A target and a draft as a model of the harness; it generates, and refuses to score given continuations.

    Sampling is the run's: of a task's own ``gen_kwargs`` only the stop strings count, so that all tasks are answered
    under the settings that are compared.

    Answers are by the task's name and the document's number.
    """

    def __init__(self, engine: Engine, config: RunConfig) -> None:
        super().__init__()
        engine.check(config.request)
        self._engine, self._config = engine, config
        self.answers: dict[tuple[str, int], Answer] = {}

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> CactusLM:
        """Load the models that the harness's ``--model_args`` name: target, draft, and what a `RunConfig` takes."""
        known = {"target": BUNDLED, "draft": BUNDLED} | arg_dict
        known["draft"] = full_name(known["draft"])
        config = RunConfig.from_dict(RunConfig("", "", "").as_dict() | known)
        return cls(load_engine(config.engine, config.target, config.draft, audited=False), config)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> CactusLM:
        """Read ``name=value`` pairs; a rule's own commas and equals signs are no separators."""
        return cls.create_from_arg_obj(_pairs(arg_string), additional_config)

    @property
    def tokenizer_name(self) -> str:
        """The target, whose template chats are written in."""
        return self._config.target

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the messages of a chat as the target's template writes them."""
        system = next((each["content"] for each in chat_history if each["role"] == "system"), None)
        messages = [each["content"] for each in chat_history if each["role"] != "system"]
        begun = "" if add_generation_prompt else messages.pop()
        return self._engine.chat_prompt(messages, system) + begun

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answer requests, each with a seed of its own that is the same for every rule."""
        texts = []
        for place, request in enumerate(requests):
            prompt, given = request.args
            until = given.get("until") or ()
            stop = (until,) if isinstance(until, str) else tuple(text for text in until if text)
            number = request.doc_id if request.doc_id is not None else place
            answer = self._engine.answer(prompt, self._config.request_at(number, stop))
            self.answers[request.task_name or "", number] = answer
            texts.append(answer.text)
        return texts

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Refuse: an acceptance rule changes what is generated, and nothing about the score of a given text."""
        raise ValueError(_refusal(requests))

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Refuse likewise."""
        raise ValueError(_refusal(requests))


def _refusal(requests: list[Any]) -> str:
    named = sorted({str(request.task_name) for request in requests})
    return (
        f"{', '.join(named)}: the task scores given continuations, which no acceptance rule changes; only tasks that "
        "generate (output_type: generate_until) can be compared"
    )


def _pairs(text: str) -> dict[str, Any]:
    """Return the pairs of ``--model_args``, with the types of a run's fields.

    Example:
        >>> _pairs("rule=clamped:width=1.0,max_kl=inf,seed=3,num_speculative_tokens=4")
        {'rule': 'clamped:width=1.0,max_kl=inf', 'seed': 3, 'num_speculative_tokens': 4}
    """
    defaults = RunConfig("", "", "").as_dict()
    pairs: dict[str, str] = {}
    last = ""
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if equals and name.strip() in defaults:
            last = name.strip()
            pairs[last] = value.strip()
        elif last == "rule":  # a rule's own parameters go on
            pairs[last] += "," + part
        else:
            raise ValueError(f"{part!r} is not argument=value; arguments are {', '.join(defaults)}")
    return {name: _typed(name, value, defaults[name]) for name, value in pairs.items()}


def _typed(name: str, value: str, default: object) -> object:
    numbers = {"budget_nats": float, "expected_tokens": int, "max_relaxed": int}
    kind = numbers.get(name, type(default))
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be of type {kind.__name__}, but is {value!r}") from None
