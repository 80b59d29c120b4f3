"""Whether an inference engine's speculative decoding is lossless: an oracle that shares no code with what it judges."""

from cactus_conform.engine import Engine, EngineAnswer, EngineError, Query, Sampling
from cactus_conform.models import write_models
from cactus_conform.report import ConformanceReport
from cactus_conform.suite import conform

__version__ = "0.1.0"
__all__ = ["ConformanceReport", "Engine", "EngineAnswer", "EngineError", "Query", "Sampling", "conform", "write_models"]
