"""Generation tasks of lm-evaluation-harness as our tasks: the harness asks and scores, our engines answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cactus_decoding.core.checks import suggestion
from cactus_decoding.core.extras import needing
from cactus_decoding.lab.evaluation.engines.engine import Answer, Conversation, Engine, Problem
from cactus_decoding.lab.evaluation.engines.loading import load_engine
from cactus_decoding.lab.evaluation.run_config import RunConfig
from cactus_decoding.lab.evaluation.tasks.task import Task
from cactus_decoding.zoo import BUNDLED, full_name


@dataclass(frozen=True, eq=False)
class HarnessTask(Task):
    """A task of the harness, whose ``manager`` finds tasks by name.

    An answer is right if the first metric with a value of 0 or 1 says so; without such a metric there is no score.
    """

    manager: Any = None

    @property
    def _read_by(self) -> str:
        return "lm_eval"

    def answer(
        self, engine: Engine, config: RunConfig, start: int = 0
    ) -> Iterator[tuple[Problem, Answer, bool | None]]:
        """Let the harness ask everything, then yield the answers; it cannot start in the middle."""
        import lm_eval

        model = CactusLM(engine, config)
        name = self.name.removeprefix(PREFIX)
        task = self.manager.load([name])["tasks"][name]
        task.process_results = _judging(task.process_results)
        results = lm_eval.simple_evaluate(
            model=model, tasks=[task], limit=config.problems, task_manager=self.manager, bootstrap_iters=0,
            apply_chat_template=config.chat is not None, system_instruction=config.chat and config.chat.system,
        )  # fmt: skip
        right: dict[int, bool | None] = {}
        for sample in results["samples"][name]:  # one for each filter of a document: the first decides
            right.setdefault(sample["doc_id"], _right(sample))
        for place, problem in islice(enumerate(self.problems[: config.problems]), start, None):
            yield problem, model.answers[name, place], right[place]


PREFIX = "lm_eval:"


def _judging(judge: Callable[..., Any]) -> Callable[..., Any]:
    """Have an answer that a task cannot judge count as an empty one: the others must not be lost with it."""

    def judged(document: Any, answers: list[Any]) -> Any:
        try:
            return judge(document, answers)
        except Exception:
            return judge(document, [""] * len(answers))

    return judged


def _right(sample: dict[str, Any]) -> bool | None:
    for metric in sample["metrics"]:
        value = sample.get(metric)
        if isinstance(value, (bool, int, float)) and value in (0, 1):
            return bool(value)
    return None


def harness_tasks(names: str, include: Path | None, problems: int | None) -> list[Task]:
    """Return tasks of the harness by comma-separated names; a group becomes its tasks.

    ``include`` is a folder with further definitions; of each task the first ``problems`` are asked.
    """
    with needing("--lm-eval needs lm-evaluation-harness", "eval"):
        from lm_eval.tasks import TaskManager
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(include_path=None if include is None else str(include))
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in manager.all_tasks]
    if unknown or not wanted:
        close = suggestion(unknown[0], manager.all_tasks) if unknown else ""
        raise ValueError(f"unknown task of lm-evaluation-harness: {', '.join(unknown) or repr(names)}{close}")
    try:
        found = manager.load(wanted)["tasks"]
    except Exception as error:  # its tasks run code of their own, and read what a user or the hub provides
        detail = f"{type(error).__name__}: {error}"
        raise ValueError(f"lm-evaluation-harness cannot load {names}: {detail}") from error
    return [_task(name, each, manager, problems) for name, each in found.items()]


def _task(name: str, task: Any, manager: Any, problems: int | None) -> HarnessTask:
    if task.OUTPUT_TYPE != "generate_until":
        raise ValueError(
            f"task {name!r} of lm-evaluation-harness scores given continuations ({task.OUTPUT_TYPE}), which no "
            "acceptance rule changes; only tasks that generate can be compared"
        )
    task.build_all_requests(limit=problems, rank=0, world_size=1)
    asked = tuple(Problem(str(request.doc_id), request.args[0]) for request in task.instances)
    if len({problem.id for problem in asked}) < len(asked):
        raise ValueError(f"task {name!r} of lm-evaluation-harness wants several answers to a problem; allowed is one")
    return HarnessTask(PREFIX + name, asked, manager=manager)


try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:  # without the extra 'eval' the class cannot be used, but the module can be imported
    LM = object

    def register_model(*names: str) -> Any:
        return lambda model: model


@register_model("cactus")
class CactusLM(LM):  # type: ignore[untyped-decorator, unused-ignore]
    """A target and a draft as a model of the harness; it generates, and refuses to score given continuations.

    The run decides how to sample. Of a task's own ``gen_kwargs`` only the stop strings count, so that all tasks are
    answered under the settings that are compared. Answers are kept by the task's name and the document's number.
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
        """Read ``name=value`` pairs; a rule's own commas and equals signs do not separate them."""
        return cls.create_from_arg_obj(_pairs(arg_string), additional_config)

    @property
    def tokenizer_name(self) -> str:
        return self._config.target

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> Any:
        """Return a conversation, which the harness hands on as it is: who answers has the template."""
        system = next((each["content"] for each in chat_history if each["role"] == "system"), None)
        messages = [each["content"] for each in chat_history if each["role"] != "system"]
        begun = "" if add_generation_prompt else messages.pop()
        return Conversation(tuple(messages), system, begun)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
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
        raise ValueError(_refusal(requests))

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        raise ValueError(_refusal(requests))


def _refusal(requests: list[Any]) -> str:
    named = sorted({str(request.task_name) for request in requests})
    return (
        f"{', '.join(named)}: the task scores given continuations, which no acceptance rule changes; only tasks that "
        "generate (output_type: generate_until) can be compared"
    )


def _pairs(text: str) -> dict[str, Any]:
    """Return the pairs of ``--model_args``, with the types of a run's fields."""
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
