"""An LLM inference and serving engine: a small kernel, everything else is a plugin.

`from core import LLM, AsyncLLM, SamplingParams` is the Python API. Importing it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from core.frontend.async_llm import AsyncLLM
    from core.frontend.llm import LLM
    from core.types import (
        CompletionOutput,
        PromptType,
        RequestOutput,
        RequestOutputKind,
        SamplingParams,
        TextPrompt,
        TokensPrompt,
    )
    from core.types.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from core.types.lora import LoRARequest
    from core.types.pooling import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingParams,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from core.types.structured import StructuredOutputsParams
    from core.vllm_api import (
        AsyncEngineArgs,
        AsyncLLMEngine,
        EngineArgs,
        LLMEngine,
        ModelRegistry,
    )

__version__ = "0.1.0"

_MODULES = {
    "AsyncEngineArgs": "core.vllm_api",
    "AsyncLLM": "core.frontend.async_llm",
    "AsyncLLMEngine": "core.vllm_api",
    "BeamSearchOutput": "core.types.beam_search",
    "BeamSearchParams": "core.types.beam_search",
    "BeamSearchSequence": "core.types.beam_search",
    "EngineArgs": "core.vllm_api",
    "LLM": "core.frontend.llm",
    "LLMEngine": "core.vllm_api",
    "LoRARequest": "core.types.lora",
    "ModelRegistry": "core.vllm_api",
    "CompletionOutput": "core.types",
    "ClassificationRequestOutput": "core.types.pooling",
    "EmbeddingRequestOutput": "core.types.pooling",
    "PoolingParams": "core.types.pooling",
    "PoolingRequestOutput": "core.types.pooling",
    "PromptType": "core.types",
    "RequestOutput": "core.types",
    "RequestOutputKind": "core.types",
    "SamplingParams": "core.types",
    "ScoringRequestOutput": "core.types.pooling",
    "StructuredOutputsParams": "core.types.structured",
    "TextPrompt": "core.types",
    "TokensPrompt": "core.types",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "LLMEngine",
    "LoRARequest",
    "ModelRegistry",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'core' has no attribute {name!r}")
    import importlib  # lazy: the engine's modules are imported with the first name that needs them

    return getattr(importlib.import_module(_MODULES[name]), name)
