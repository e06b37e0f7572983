"""Contracts of logits processors, grammars and speculators."""

from core.contracts.grammar import (
    Grammar,
    GrammarBackend,
    GrammarState,
    Vocabulary,
    byte_level_alphabet,
    read_vocabulary,
)
from core.contracts.sampling import (
    LogitsProcessor,
    RequestLogitsProcessor,
    RowFunction,
    SamplerContext,
    SampleRows,
)
from core.contracts.speculators import (
    MAX_DRAFT_TOKENS,
    DraftRow,
    SpeculativeConfig,
    Speculator,
    TokenTree,
)
from core.plugin.named_processors import logits_processors
from core.types.beam_search import BeamSearch, BeamSearchParams, BeamSearchSequence
from core.types.json_schema import ignored_keyword, schema_parts, unsupported_keyword
from core.types.structured import Constraint, StructuredOutputsParams

__all__ = [
    "MAX_DRAFT_TOKENS",
    "BeamSearch",
    "BeamSearchParams",
    "BeamSearchSequence",
    "Constraint",
    "DraftRow",
    "Grammar",
    "GrammarBackend",
    "GrammarState",
    "LogitsProcessor",
    "RequestLogitsProcessor",
    "RowFunction",
    "SampleRows",
    "SamplerContext",
    "SpeculativeConfig",
    "Speculator",
    "StructuredOutputsParams",
    "TokenTree",
    "Vocabulary",
    "byte_level_alphabet",
    "ignored_keyword",
    "logits_processors",
    "read_vocabulary",
    "schema_parts",
    "unsupported_keyword",
]
