"""The user-facing data types: parameters, prompts, outputs."""

from core.types.bounds import Bound
from core.types.outputs import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    merge_extra_fields,
)
from core.types.prompts import (
    ExplicitEncoderDecoderPrompt,
    FeaturesPrompt,
    PromptType,
    TextPrompt,
    TokensPrompt,
)
from core.types.sampling import RequestOutputKind, SamplingParams

__all__ = [
    "Bound",
    "CompletionOutput",
    "ExplicitEncoderDecoderPrompt",
    "FeaturesPrompt",
    "Logprob",
    "PositionLogprobs",
    "PromptType",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "merge_extra_fields",
]
