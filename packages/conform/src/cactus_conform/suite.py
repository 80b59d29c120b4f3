"""Ask an engine everything, and say what was found."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cactus_conform.checks import BATCH, COUPLED, GREEDY, LOGPROBS, SEEDS, TOGETHER, Check, checks_of
from cactus_conform.engine import (
    DRAFTS,
    END,
    VOCABULARY,
    Engine,
    EngineAnswer,
    EngineError,
    FunctionEngine,
    Query,
    Sampling,
    check_drawn,
)
from cactus_conform.evidence import UNNAMED, Evidence, Found, deviation_not_excluded, together
from cactus_conform.processing import Rows
from cactus_conform.report import Acceptance, ConformanceReport, Finding
from cactus_conform.truth import Scored, Truth, expected_token

SAMPLES, FALSE_ALARM = 200, 1e-3
GATE_SECONDS = 60.0
_BATCH, _FEW = 50, 20
_Group = tuple[tuple[int, ...], Sampling]
_LOGPROB = 0.02  # the largest allowed error of a reported log-probability
_NEAR_TIE = 1e-3  # rounding decides between log-probabilities that are closer


def conform(
    engine: Engine | Callable[..., Any],
    *,
    samples: int = SAMPLES,
    false_alarm: float = FALSE_ALARM,
    seed: int = 0,
    truth: Truth | None = None,
    only: Sequence[Check] | None = None,
    report: Callable[[Finding], None] = lambda finding: None,
    first_only: bool = False,
    gate: bool = False,
) -> ConformanceReport:
    """Check whether an engine's speculation is lossless: whether its tokens have the distribution of the target alone.

    Every check collects evidence (see `Evidence`) until it exceeds the number of checks over ``false_alarm``, or all
    samples are drawn. So a right engine is called wrong with probability ``false_alarm`` at most, over all checks.

    Args:
        engine: an engine's adapter, or a function ``(prompt, sampling, seed) -> tokens`` over
            the models that `write_models` makes; ``sampling`` is a `Sampling`.
        samples: responses that a check draws, if it finds nothing; a few checks draw more.
        false_alarm: in (0, 1).
        seed: of the first response; each further response has the next number.
        truth: the distributions, where they are known already.
        only: these checks and no others.
        report: is called with each finding.
        first_only: stop at the first mistake.
        gate: for releases and rollouts: return within a minute, and fail closed. The report is true only if every check
            was answered in time and found nothing; what went wrong else is its ``failure``, and no error is raised.
            Checks share the time: a slow engine is asked less, which the report says by what it excludes.

    Raises:
        EngineError: for an engine that is down, fails, or gives no answer.
        TypeError, ValueError: for invalid arguments.

    Example:
        >>> from cactus_conform.checks import Check
        >>> from cactus_conform.reference import Reference
        >>> bool(conform(Reference(), samples=50, only=[Check("temperature 1", Sampling(draft="bad"))]))
        True
    """
    check_drawn(samples, false_alarm)
    tested: Engine = engine if hasattr(engine, "answer") else FunctionEngine(engine)  # type: ignore[assignment]
    result = ConformanceReport(tested.name, false_alarm)
    checks = list(only) if only is not None else checks_of(tested)
    names = ("temperature_last", "penalises_prompt", "ends_alike")
    truth = truth or Truth(**{name: getattr(tested, name) for name in names})
    run = _Run(tested, truth, false_alarm / (len(checks) + 1), itertools.count(seed))

    def ask(seconds: float = math.inf) -> None:
        began, used = time.perf_counter(), time.process_time()
        for number, check in enumerate(checks, 1):
            run.until = began + seconds * number / len(checks)
            finding = run.check(check, math.ceil(samples * check.share))
            result.findings.append(finding)
            report(finding)
            if first_only and finding.right is False:
                break
        for finding in run.together() if result.right else ():
            result.findings.append(finding)
            report(finding)
        if not first_only:
            result.acceptance = run.acceptance()
        result.seconds, result.processor_seconds = time.perf_counter() - began, time.process_time() - used

    if gate:
        return _gated(result, ask)
    ask()
    return result


def _gated(result: ConformanceReport, ask: Callable[[float], None]) -> ConformanceReport:
    """Ask in a thread, so that an engine that hangs is left alone; five seconds are kept for the verdict."""
    failures = list[str]()

    def answer() -> None:
        try:
            ask(GATE_SECONDS - 5)
        except Exception as error:  # whatever goes wrong, the gate stays closed
            failures.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(GATE_SECONDS)
    if thread.is_alive():
        failures.append(f"only {len(result.findings)} checks were answered in {GATE_SECONDS:g} s")
    elif not result.findings:
        failures.append("there was no check")
    # a copy, which a thread that is still running does not change
    return replace(result, findings=[*result.findings], failure="; ".join(failures))


class _Run:
    """One engine, its true distributions, and the share of the false alarms that a check may take."""

    def __init__(self, engine: Engine, truth: Truth, alpha: float, seeds: Iterator[int]) -> None:
        self._engine, self._truth, self._alpha, self._seeds = engine, truth, alpha, seeds
        self.until = math.inf  # when a check is to end, by `time.perf_counter`; every check has one batch at least
        self._counted: dict[str, list[tuple[Query, EngineAnswer]]] = {}
        self._blamed = set[str]()  # drafts with which something is wrong
        self._named = list[Evidence]()  # of each check that found nothing

    def check(self, check: Check, samples: int) -> Finding:
        kinds = {
            BATCH: self._batch,
            COUPLED: self._coupled,
            GREEDY: self._greedy,
            LOGPROBS: self._logprobs,
            SEEDS: self._seeds_repeat,
        }
        finding = kinds.get(check.kind, self._tokens)(check, samples)
        if finding.right is False:
            self._blamed.add(check.sampling.draft)
        return finding

    def _ask(self, check: Check, count: int) -> tuple[list[Query], list[EngineAnswer]]:
        asked = itertools.cycle(itertools.product(check.prompts, (check.sampling, *check.others)))
        return self._answers([Query(*next(asked), next(self._seeds)) for _ in range(count)])

    def _answers(self, queries: list[Query]) -> tuple[list[Query], list[EngineAnswer]]:
        answers = self._engine.answer(queries)
        if len(answers) != len(queries):
            raise EngineError(f"{self._engine.name} was asked {len(queries)} times and answered {len(answers)} times")
        for answer in answers:
            tokens = answer.token_ids
            if not tokens or not all(isinstance(each, int) and 0 <= each < VOCABULARY for each in tokens):
                raise EngineError(
                    f"{self._engine.name} answered {list(tokens)}, but an answer is one or more tokens in "
                    f"[0, {VOCABULARY})"
                )
        if queries[0].sampling == Sampling(draft=queries[0].sampling.draft):
            self._counted.setdefault(queries[0].sampling.draft, []).extend(zip(queries, answers, strict=True))
        return queries, answers

    def _tokens(self, check: Check, samples: int) -> Finding:
        evidence, drawn, outputs = Evidence(), 0, defaultdict[_Group, list[tuple[int, ...]]](list)
        threshold = math.log(1 / self._alpha)
        while drawn < samples and (not drawn or time.perf_counter() < self.until):
            # small batches first: a wrong engine is mostly caught by few
            queries, answers = self._ask(check, min(_BATCH if drawn >= _BATCH else _FEW, samples - drawn))
            drawn += len(queries)
            if said := _malformed(queries, answers):
                return Finding(check, False, drawn, math.inf, said=said)
            found = _add(evidence, self._truth, queries, answers)
            for query, answer in zip(queries, answers, strict=True):
                outputs[query.prompt, query.sampling].append(answer.token_ids)
            if found.log_e >= threshold:
                return Finding(check, False, drawn, found.log_e, said=self._cause(check, evidence, found))
        self._named.append(evidence)
        alpha = self._alpha / len(outputs)
        deviation = max(self._deviation(*group, of, alpha) for group, of in outputs.items())
        return Finding(check, True, drawn, found.log_e, deviation)

    def together(self) -> Iterator[Finding]:
        """Add up the evidence of all checks, because a small mistake may show a little in each."""
        if len(self._named) < 2:
            return
        found = together(np.sum([each.named for each in self._named], 0))
        wrong = found.log_e >= math.log(1 / self._alpha)
        said = f"{found.cause} ({found.place})" if wrong else "excluded: known mistakes that show a little in each"
        yield Finding(TOGETHER, not wrong, 0, found.log_e, said=said)

    def _cause(self, check: Check, evidence: Evidence, found: Found) -> str:
        """Ask more questions, to tell causes apart that look alike, and return the likeliest."""
        queries, answers = self._ask(check, SAMPLES)
        if not _malformed(queries, answers):
            found = _add(evidence, self._truth, queries, answers)
        cause = found.cause
        if check.suspect and cause.startswith(UNNAMED) and check.sampling.draft not in self._blamed:
            cause = check.suspect  # all else was right so far
        return f"{cause} ({found.place})" if found.place else cause

    def _deviation(
        self, prompt: tuple[int, ...], sampling: Sampling, outputs: list[tuple[int, ...]], alpha: float
    ) -> float:
        """Return the largest deviation that is not excluded for each of the first three tokens."""
        longest = min(3, sampling.max_tokens)
        expected, counts = np.zeros((longest, VOCABULARY + 1)), np.zeros((longest, VOCABULARY + 1))
        for output, probability in self._truth.enumerate(prompt, sampling, longest).items():
            for place in range(longest):
                expected[place, output[place] if place < len(output) else VOCABULARY] += probability
        for output in outputs:
            for place in range(longest):
                counts[place, output[place] if place < len(output) else VOCABULARY] += 1
        return max(deviation_not_excluded(*each, alpha / longest) for each in zip(expected, counts, strict=True))

    def _batch(self, check: Check, samples: int) -> Finding:
        """Compare neighbours' first tokens, which are equal by chance only."""
        expected = self._truth.enumerate(check.prompts[0], check.sampling, 1)
        chance = sum(each**2 for each in expected.values())
        likely = np.array([chance / 2, *(chance + share * (1 - chance) for share in (0.1, 0.4, 1.0))])
        drawn, logs, repeated = 0, np.zeros(len(likely)), 0
        while drawn < samples and (not drawn or time.perf_counter() < self.until):
            queries, answers = self._ask(check, min(_BATCH, max(2 * ((samples - drawn) // 2), 2)))
            drawn += len(queries)
            pairs = list(zip(answers[::2], answers[1::2], strict=True))
            equal = sum(first.token_ids[0] == second.token_ids[0] for first, second in pairs)
            repeated += equal
            # an alternative that excludes what came gets a finite logarithm, because 0 times it must be 0
            logs += equal * np.log(likely / chance)
            logs += (len(pairs) - equal) * np.log(np.maximum((1 - likely) / (1 - chance), 1e-300))
            log_e = float(np.logaddexp.reduce(logs) - math.log(len(likely)))
            if log_e >= math.log(1 / self._alpha):
                return Finding(check, False, drawn, log_e, said="responses of different seeds are not independent")
        counts = np.array([repeated, drawn // 2 - repeated])
        bound = deviation_not_excluded(np.array([chance, 1 - chance]), counts, self._alpha)
        said = f"excluded: neighbours begin alike more often, or less, than by chance by more than {bound:.2f}"
        return Finding(check, True, drawn, log_e, said=said)

    def _greedy(self, check: Check, samples: int) -> Finding:
        """Compare with the most likely tokens; the target's probabilities tell near-ties from mistakes."""

        def below(query: Query, rows: Scored) -> Rows:
            logs = np.log(rows.raw_target)
            best: Rows = logs.max(-1, keepdims=True)
            return best - logs

        right = f"excluded: any of {{}} tokens lies more than {_NEAR_TIE:g} nats below the likeliest"
        return self._decided(check, len(check.prompts), below, "is {}, but the target's likeliest is", right)

    def _coupled(self, check: Check, samples: int) -> Finding:
        """Compare with the tokens that the seeds decide; the scores tell near-ties from mistakes."""

        def below(query: Query, rows: Scored) -> Rows:
            places = itertools.count(len(query.prompt))
            return np.stack([expected_token(row, query.seed, next(places))[1] for row in rows.target])

        right = "all of {} tokens are those that the seeds decide for"
        return self._decided(check, 2 * len(check.prompts), below, "is {}, but the seed decides for", right)

    def _decided(
        self, check: Check, count: int, below: Callable[[Query, Scored], Rows], wrong: str, right: str
    ) -> Finding:
        """Compare with tokens that are known beforehand.

        ``below`` returns by how many nats each token is worse than the known one, ``[positions, vocabulary]``.
        """
        queries, answers = self._ask(check, count)
        if said := _malformed(queries, answers):
            return Finding(check, False, len(queries), math.inf, said=said)
        ties = tokens = 0
        for query, answer in zip(queries, answers, strict=True):
            rows = self._truth.score(query.prompt, [answer.token_ids], check.sampling)
            nats = below(query, rows)
            gaps = np.take_along_axis(nats, rows.tokens[:, None], -1)[:, 0]
            if (mistaken := (gaps > _NEAR_TIE) & rows.clear).any():
                place = int(mistaken.argmax())
                said = (
                    f"token {place + 1} with seed {query.seed} {wrong.format(rows.tokens[place])} "
                    f"{int(nats[place].argmin())}, by {gaps[place]:.3g} nats: no rounding"
                )
                return Finding(check, False, len(queries), math.inf, said=said)
            ties += int((gaps > 0).sum())
            tokens += len(gaps)
        said = right.format(tokens) + f"; {ties} near-ties were decided by rounding" * bool(ties)
        return Finding(check, True, len(queries), said=said)

    def _seeds_repeat(self, check: Check, samples: int) -> Finding:
        queries, answers = self._ask(check, _FEW)
        _, again = self._answers(queries)
        same = sum(first.token_ids == second.token_ids for first, second in zip(answers, again, strict=True))
        if same < len(queries):
            said = f"{len(queries) - same} of {len(queries)} seeds gave another response"
            return Finding(check, None, 2 * len(queries), said=said)
        return Finding(check, True, 2 * len(queries), said=f"all {same} seeds gave the same response again")

    def _logprobs(self, check: Check, samples: int) -> Finding:
        """Accept log-probabilities before temperature and cuts, or after them."""
        queries, answers = self._ask(check, _BATCH)
        worst = np.zeros(2)
        for query, answer in zip(queries, answers, strict=True):
            given = np.array(answer.logprobs or ())
            if len(given) < len(answer.token_ids) - (answer.token_ids[-1] == END):  # servers do not show this one
                said = f"{len(given)} log-probabilities came with {len(answer.token_ids)} tokens"
                return Finding(check, False, len(queries), math.inf, said=said)
            rows = self._truth.score(query.prompt, [answer.token_ids], check.sampling)
            for index, of in enumerate((rows.target, rows.raw_target)):
                true = np.log(np.take_along_axis(of, rows.tokens[:, None], -1)[:, 0])[: len(given)]
                worst[index] = max(worst[index], np.abs(true - given[: len(true)]).max(initial=0))
        if worst.min() <= _LOGPROB:
            said = f"none differs by more than {worst.min():.2g} nats; {_LOGPROB:g} would be found"
            return Finding(check, True, len(queries), said=said)
        said = f"log-probabilities differ from the target's by up to {worst.min():.3g} nats"
        return Finding(check, False, len(queries), math.inf, said=said)

    def acceptance(self) -> dict[str, Acceptance]:
        from cactus_conform.reference import Reference

        result: dict[str, Acceptance] = {}
        for draft, counted in self._counted.items():
            if draft not in DRAFTS or all(answer.accepted is None for _, answer in counted):
                continue
            found, variance = _accepted([answer for _, answer in counted])
            possible, another = _accepted(Reference(self._truth).answer([query for query, _ in counted]))
            result[draft] = Acceptance(found, possible, math.sqrt(variance + another))
        return result


def _accepted(answers: Sequence[EngineAnswer]) -> tuple[float, float]:
    """Return accepted proposals over tokens, and the variance of this ratio."""
    accepted, tokens = np.array([(each.accepted or 0, len(each.token_ids)) for each in answers], float).T
    rate = accepted.sum() / tokens.sum()
    return float(rate), float(((accepted - rate * tokens) ** 2).sum() / tokens.sum() ** 2)


def _add(evidence: Evidence, truth: Truth, queries: Sequence[Query], answers: Sequence[EngineAnswer]) -> Found:
    groups = defaultdict[_Group, list[tuple[int, ...]]](list)
    for query, answer in zip(queries, answers, strict=True):
        groups[query.prompt, query.sampling].append(answer.token_ids)
    for group, outputs in groups.items():
        rows = truth.score(group[0], outputs, group[1])
        contexts: list[Hashable | None] = [
            (group, *output[:place]) if place < 3 else None for output in outputs for place in range(len(output))
        ]
        evidence.add(rows, contexts)
    return evidence.found()


def _malformed(queries: Sequence[Query], answers: Sequence[EngineAnswer]) -> str:
    each = (malformed(answer.token_ids, query.sampling) for query, answer in zip(queries, answers, strict=True))
    return next(filter(None, each), "")


def malformed(tokens: Sequence[int], sampling: Sampling) -> str:
    early = next((token for token in tokens[:-1] if token in sampling.ends), None)
    if early is not None:
        return f"tokens came after token {early}, which ends the output"
    if len(tokens) > sampling.max_tokens:
        return f"{len(tokens)} tokens came, but max_tokens is {sampling.max_tokens}"
    if len(tokens) < sampling.max_tokens and tokens[-1] not in sampling.ends:
        return f"{len(tokens)} tokens came, of {sampling.max_tokens}, and no token that ends the output"
    return ""
