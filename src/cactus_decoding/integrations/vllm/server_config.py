"""What the server was started with, as far as it concerns us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cactus_decoding.arguments.checks import check_number
from cactus_decoding.integrations.vllm.request import BUDGET_KEY, RULE_KEY, Relaxation, relaxation

METRICS_KEY, AUDIT_KEY = "acceptance_metrics", "audit_fraction"


@dataclass(frozen=True)
class ServerConfig:
    """Our part of vLLM's configuration; the keys are those of ``--additional-config``.

    Attributes:
        speculates: whether there is a draft at all.
        method: vLLM's ``rejection_sample_method``; rules work with ``standard`` only.
        watermarks: whether tokens are watermarked, which the rules leave no room for.
        default: for requests that ask for nothing (``acceptance_rule``, ``budget``).
        metrics: whether to count for Prometheus (``acceptance_metrics``, true by default).
        audit_fraction: part of the positions whose emitted nats are computed (``audit_fraction``, 0 by default).
    """

    speculates: bool
    method: str
    watermarks: bool
    default: Relaxation | None
    metrics: bool
    audit_fraction: float

    @classmethod
    def of(cls, vllm_config: Any) -> ServerConfig:
        """Read vLLM's configuration.

        Raises:
            TypeError: for a value of the wrong type.
            ValueError: for one out of range, or a default rule that the server cannot follow.
        """
        speculative = vllm_config.speculative_config
        given = vllm_config.additional_config
        keys = given if isinstance(given, Mapping) else {}
        default = relaxation({key: keys.get(key) for key in (RULE_KEY, BUDGET_KEY)})
        metrics = keys.get(METRICS_KEY, True)
        if not isinstance(metrics, bool):
            raise TypeError(f"{METRICS_KEY} must be true or false, but is {metrics!r}")
        fraction = keys.get(AUDIT_KEY, 0.0)
        check_number(AUDIT_KEY, fraction, 0, 1)
        method = "standard" if speculative is None else speculative.rejection_sample_method
        config = cls(
            speculates=speculative is not None,
            method=method,
            watermarks=getattr(vllm_config, "watermark_config", None) is not None,
            default=default,
            metrics=metrics,
            audit_fraction=float(fraction),
        )
        if default is not None:
            config.check(default)
        return config

    def check(self, asked: Relaxation) -> None:
        """Raise `ValueError` unless the server can follow a rule."""
        if asked.lossless:
            return
        if not self.speculates:
            raise ValueError(f"{RULE_KEY} needs a draft, and the server runs without --speculative-config")
        if self.method != "standard":
            raise ValueError(f"{RULE_KEY} needs rejection_sample_method 'standard', but the server has {self.method!r}")
        if self.watermarks:
            raise ValueError(f"{RULE_KEY} does not work on a server that watermarks its tokens")
