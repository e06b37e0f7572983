"""An LLM inference and serving engine: a small kernel, everything else a plugin.

`from core import LLM, AsyncLLM, SamplingParams` is the Python API; importing this module imports no
torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from builtin_plugins.commands.plan.memory_plan import MemoryPlan, memory_plan
    from core.engine.async_llm import AsyncLLM
    from core.familiar.adapters import LoRARequest
    from core.familiar.args import AsyncEngineArgs, EngineArgs
    from core.familiar.beams import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from core.familiar.engines import AsyncLLMEngine, LLMEngine
    from core.familiar.llm import LLM
    from core.familiar.models import ModelRegistry
    from core.types import (
        CompletionOutput,
        PromptType,
        RequestOutput,
        RequestOutputKind,
        SamplingParams,
        TextPrompt,
        TokensPrompt,
    )
    from core.types.pooled import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from core.types.pooling import PoolingParams
    from core.types.structured import StructuredOutputsParams

__version__ = "0.1.0"

_HOMES = {
    "AsyncEngineArgs": "core.familiar.args",
    "AsyncLLM": "core.engine.async_llm",
    "AsyncLLMEngine": "core.familiar.engines",
    "BeamSearchOutput": "core.familiar.beams",
    "BeamSearchParams": "core.familiar.beams",
    "BeamSearchSequence": "core.familiar.beams",
    "EngineArgs": "core.familiar.args",
    "LLM": "core.familiar.llm",
    "LLMEngine": "core.familiar.engines",
    "LoRARequest": "core.familiar.adapters",
    "ModelRegistry": "core.familiar.models",
    "MemoryPlan": "builtin_plugins.commands.plan.memory_plan",
    "CompletionOutput": "core.types",
    "ClassificationRequestOutput": "core.types.pooled",
    "EmbeddingRequestOutput": "core.types.pooled",
    "PoolingParams": "core.types.pooling",
    "PoolingRequestOutput": "core.types.pooled",
    "PromptType": "core.types",
    "RequestOutput": "core.types",
    "RequestOutputKind": "core.types",
    "SamplingParams": "core.types",
    "ScoringRequestOutput": "core.types.pooled",
    "StructuredOutputsParams": "core.types.structured",
    "TextPrompt": "core.types",
    "TokensPrompt": "core.types",
    "memory_plan": "builtin_plugins.commands.plan.memory_plan",
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
    "MemoryPlan",
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
    "memory_plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'core' has no attribute {name!r}")
    import importlib  # lazy: the engine's modules are imported with the first name that needs them

    return getattr(importlib.import_module(_HOMES[name]), name)
