"""What users pass and get: parameters, prompts, outputs. Plain data."""

from core.types.bounds import Bound
from core.types.outputs import (
    CompletionOutput,
    Logprob,
    PositionLogprobs,
    RequestMetrics,
    RequestOutput,
    joined,
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
    "joined",
]
