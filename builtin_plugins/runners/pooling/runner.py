"""Joins the parts of pooling: how a model is pooled, the edge of requests, the second half of a
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from builtin_plugins.runners.pooling import settle, wishes
from builtin_plugins.runners.pooling.calls import Calls
from builtin_plugins.runners.pooling.prompts import PoolingPrompts
from builtin_plugins.runners.pooling.requests import as_sampling
from core.api import (
    EngineConfig,
    ModelSource,
    PoolingInfo,
    PoolingParams,
    SamplingParams,
    Stage,
    StageParts,
)


class Pooling:
    """Takes models that were made to be pooled, and those that the user converts."""

    generates = False

    def __init__(self, registry: Any) -> None:
        self._registry = registry

    def aliases(self, architecture: str) -> Sequence[str]:
        """Of any decoder that generates, the bare model and the classifiers are known as well."""
        return settle.aliases(architecture)

    def settle(self, spec: Any, config: EngineConfig, source: ModelSource) -> Any:
        """Return the spec with its pooling decided."""
        return settle.settle(spec, config, source, self._registry)

    def fit(self, config: EngineConfig, spec: Any) -> EngineConfig:
        """Switch off what a model that sees both sides cannot do."""
        return settle.fit(config, spec)

    def info(self, spec: Any) -> PoolingInfo:
        """Return tasks and sizes."""
        return settle.info(spec, self._registry)

    def stage(self, parts: StageParts) -> Stage:
        """Return what pools, with the poolers of the model."""
        from builtin_plugins.runners.pooling.stage import (
            PoolingStage,
        )  # lazy: torch is slow to import

        spec = parts.spec.pooling
        registry = self._registry
        names = ("all",) if spec.late else spec.poolers
        made = [
            registry.make(registry.choose("poolers", name), parts.config)
            for name in (*names, spec.token_pooler)
        ]
        return PoolingStage(parts, made[:-1], made[-1])

    def admit(self, info: PoolingInfo | None, params: Any) -> tuple[PoolingParams, SamplingParams]:
        """Return a request's parameters, checked by what the model can do."""
        assert info is not None, "a pooled model says what it can do"
        return as_sampling(info, params)

    def calls(self, front: Any, run: Callable[..., Any] | None) -> Calls:
        """Return what `LLM` offers of the model."""
        most = front.admission.limits.max_prompt_len
        pieces = wishes.pieces(front.config, most)
        longest = most if pieces is None else pieces.most
        prompts = PoolingPrompts(front.renderer, front.source.sentence, most, longest)
        return Calls(prompts, front.info.pooling, run, pieces)
