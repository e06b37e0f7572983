"""Contracts of logits processors, grammars and speculators."""

from core.contracts.sampling import (
    LogitsProcessor,
    RequestLogitsProcessor,
    RowFunction,
    SamplerContext,
    SampleRows,
)
from core.plugin.named_processors import logits_processors
from core.types.beam_search import BeamSearch, BeamSearchParams, BeamSearchSequence
from core.types.structured import Constraint, StructuredOutputsParams

__all__ = [
    "BeamSearch",
    "BeamSearchParams",
    "BeamSearchSequence",
    "Constraint",
    "LogitsProcessor",
    "RequestLogitsProcessor",
    "RowFunction",
    "SampleRows",
    "SamplerContext",
    "StructuredOutputsParams",
    "logits_processors",
]
