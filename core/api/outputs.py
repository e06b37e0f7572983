"""Outputs and parameters that only some plugins need."""

from core.frontend.text.sequence import LogprobsFormatter, OutputSequence
from core.types.pooling import (
    PER_TOKEN,
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Pooled,
    PoolingInfo,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from core.types.prompts import TokensPrompt
from core.types.sampling import require_sampling_params

__all__ = [
    "PER_TOKEN",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "LogprobsFormatter",
    "OutputSequence",
    "Pooled",
    "PoolingInfo",
    "PoolingOutput",
    "PoolingRequestOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
    "TokensPrompt",
    "require_sampling_params",
]
