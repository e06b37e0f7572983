"""A runner: processes the hidden states of every step.

This one delegates to the builtin `generate` runner and counts the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from core.api import EngineConfig, Registry, SamplingParams
    from core.api.execution import (
        NewRow,
        PoolingCalls,
        Runner,
        Stage,
        StageParts,
        StepPlan,
        StepRows,
    )
    from core.api.models import ModelSource


class Acme:
    """Runs models when the user selects it."""

    generates = True

    def __init__(self, registry: Registry) -> None:
        self._inner: Runner = registry.load(registry.choose("runners", "generate"))(registry)

    def aliases(self, architecture: str) -> Sequence[str]:
        """Return other architectures with the same layers."""
        return self._inner.aliases(architecture)

    def adapt_spec(self, spec: Any, config: EngineConfig, source: ModelSource) -> Any:
        """Return the adapted model spec; None when another runner is selected."""
        if config.model.runner != "acme":
            return None
        return self._inner.adapt_spec(
            spec, replace(config, model=replace(config.model, runner="generate")), source
        )

    def adapt_config(self, config: EngineConfig, spec: Any) -> EngineConfig:
        """Return the configuration adapted to the model."""
        return self._inner.adapt_config(config, spec)

    def pooling_info(self, spec: Any) -> Any:
        """Return the pooling tasks of the model."""
        return self._inner.pooling_info(spec)

    def stage(self, parts: StageParts) -> Stage:
        """Return the output stage of every step."""
        return Counted(self._inner.stage(parts))

    def read_params(self, info: Any, params: Any) -> tuple[Any, SamplingParams]:
        """Return a request's complete parameters."""
        return self._inner.read_params(info, params)

    def pooling_calls(self, frontend: Any, run: Any) -> PoolingCalls:
        """Return the pooling calls for the frontend."""
        return self._inner.pooling_calls(frontend, run)


class Counted:
    """Output stage that counts tokens."""

    def __init__(self, inner: Stage) -> None:
        self._inner = inner
        self.num_tokens = 0
        """Number of computed tokens."""

    def added(self, new: NewRow) -> str | None:
        """Add a row."""
        return self._inner.added(new)

    def removed(self, row: int) -> None:
        """Remove a row."""
        self._inner.removed(row)

    def token_types(self, inputs: StepRows) -> torch.Tensor | None:
        """Return the token type ids of the step."""
        return self._inner.token_types(inputs)

    def run(
        self, plan: StepPlan, inputs: StepRows, hidden: torch.Tensor, errors: dict[int, str]
    ) -> Any:
        """Return the step's result."""
        self.num_tokens += len(hidden)
        return self._inner.run(plan, inputs, hidden, errors)

    def take(self, inputs: StepRows, tokens: torch.Tensor) -> None:
        """Record tokens sampled on another rank."""
        self._inner.take(inputs, tokens)
