"""Contracts of logits processors, grammars and speculators."""

from core.contracts.sampling import LogitsProcessor, SamplerContext, SampleRows
from core.plugin.named_processors import logits_processors
from core.types.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from core.types.structured import ConstraintKind, StructuredOutputsParams

__all__ = [
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ConstraintKind",
    "LogitsProcessor",
    "SampleRows",
    "SamplerContext",
    "StructuredOutputsParams",
    "logits_processors",
]
