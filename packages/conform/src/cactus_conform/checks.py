"""The checks of an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cactus_conform.engine import LOOK_UP, VOCABULARY, Engine, Sampling
from cactus_conform.models import PROMPTS

TOKENS, BATCH, GREEDY, SEEDS, LOGPROBS, COUPLED = "tokens", "batch", "greedy", "seeds", "logprobs", "coupled"
COMBINED = Sampling(temperature=0.7, top_k=6, top_p=0.85)


@dataclass(frozen=True)
class Check:
    name: str
    sampling: Sampling
    kind: str = TOKENS  # how the answers are judged
    prompts: tuple[tuple[int, ...], ...] = PROMPTS[:1]  # asked in turn
    share: float = 1.0  # samples, in multiples of the usual number
    others: tuple[Sampling, ...] = ()  # further samplings in the same batch
    suspect: str = ""  # the likely cause if no other check failed and no known mistake explains it

    @property
    def needs(self) -> frozenset[str]:
        needed = self.sampling.needs.union(*(each.needs for each in self.others))
        return (
            needed
            | {LOGPROBS: {"logprobs"}, SEEDS: {"repeats"}, COUPLED: {"coupled"}}.get(self.kind, set[str]())
            | ({"batch"} if self.others else set())
        )


TOGETHER = Check("all checks together", Sampling())


def checks_of(engine: Engine) -> list[Check]:
    """Return the checks that an engine can answer, grouped by draft, because some engines restart for each."""
    found = [each for each in _all(engine.drafts) if each.needs <= engine.supports]
    drafts = list(dict.fromkeys(each.sampling.draft for each in found))
    return sorted(found, key=lambda each: drafts.index(each.sampling.draft))


def _all(drafts: Sequence[str]) -> Iterator[Check]:
    """Yield all checks: bad drafts show what follows rejections, good ones what follows kept proposals."""
    models = [each for each in drafts if each != LOOK_UP] or list(drafts)
    bad = next((each for each in ("bad", "adversarial") if each in models), models[0])
    good = "good" if "good" in models else models[0]

    def by(draft: str, name: str, sampling: Sampling, share: float = 1.0, **more: object) -> Check:
        return Check(f"{name}, {draft} draft", replace(sampling, draft=draft), share=share, **more)  # type: ignore[arg-type]

    for draft in drafts:
        for name, sampling in (("temperature 1", Sampling(max_tokens=12)), ("cuts", replace(COMBINED, max_tokens=12))):
            yield by(draft, f"token by token, {name}", sampling, kind=COUPLED, prompts=PROMPTS)
    for draft in sorted(drafts, key=lambda each: each != bad):
        yield by(draft, "temperature 1", Sampling(), 4.0 if draft == bad else 1.0)
    yield by(bad, "temperature 0.7", Sampling(temperature=0.7))
    yield by(bad, "temperature 1.4", Sampling(temperature=1.4))
    yield by(bad, "top-k", Sampling(top_k=3))
    yield by(bad, "top-p", Sampling(top_p=0.8))
    yield by(bad, "min-p", Sampling(min_p=0.15))
    yield by(bad, "temperature, top-k and top-p", COMBINED, 4.0)
    if good != bad:
        yield by(good, "temperature, top-k and top-p", COMBINED)
    # where recovery shows most: of the prompts, drafts and temperatures here, this one has most nats a response
    yield by(bad, "rejections in a row: 12 tokens", Sampling(max_tokens=12), 3.0, prompts=PROMPTS[2:])
    yield by(good, "repetition penalty", Sampling(repetition_penalty=1.6, max_tokens=8))
    yield by(good, "presence and frequency penalties",
             Sampling(presence_penalty=0.8, frequency_penalty=0.6, max_tokens=8))  # fmt: skip
    yield by(good, "logit bias", Sampling(logit_bias=((1, 1.5), (VOCABULARY - 1, 2.0))))
    yield by(good, "grammar", Sampling(letters="abcdeg"))
    yield by(good, "stop tokens among proposals", Sampling(stop_token_ids=(7, 2), max_tokens=8))
    yield by(good, "end of max_tokens", Sampling(max_tokens=2))
    yield by(good, "prompts with a shared beginning", Sampling(), prompts=PROMPTS,
             suspect="what was kept of another prompt is read")  # fmt: skip
    yield by(good, "after a cancelled request", Sampling(cancels=True),
             suspect="a request that was given up leaves something in the cache")  # fmt: skip
    yield by(good, "independent responses", Sampling(), kind=BATCH)
    others = ({"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.8, "max_tokens": 3}, {"temperature": 0.0})
    yield by(bad, "other samplings in the batch", Sampling(), suspect="responses of a batch share their settings",
             others=tuple(Sampling(draft=bad, **each) for each in others))  # fmt: skip
    for draft in dict.fromkeys((good, bad)):
        yield by(draft, "temperature 0", Sampling(temperature=0.0, max_tokens=12), kind=GREEDY, prompts=PROMPTS)
    yield by(good, "a seed repeats", Sampling(max_tokens=12), kind=SEEDS)
    yield by(bad, "log-probabilities", Sampling(temperature=0.7), kind=LOGPROBS)
