"""A runner.

This one lets the engine's own `generate` work and counts the tokens it has read; let yours follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from core.api import (
        Calls,
        EngineConfig,
        ModelSource,
        NewRow,
        Runner,
        SamplingParams,
        Stage,
        StageParts,
        StepPlan,
        StepRows,
    )


class Acme:
    """Runs a model that the user wants to be run so."""

    generates = True

    def __init__(self, registry: Any) -> None:
        self._inner: Runner = registry.load(registry.choose("runners", "generate"))(registry)

    def aliases(self, architecture: str) -> Sequence[str]:
        """Return other architectures with the same layers."""
        return self._inner.aliases(architecture)

    def settle(self, spec: Any, config: EngineConfig, source: ModelSource) -> Any:
        """Return the model as it is built here; None where it is for another runner."""
        if config.model.runner != "acme":
            return None
        return self._inner.settle(
            spec, replace(config, model=replace(config.model, runner="generate")), source
        )

    def fit(self, config: EngineConfig, spec: Any) -> EngineConfig:
        """Return the configuration as the model needs it."""
        return self._inner.fit(config, spec)

    def info(self, spec: Any) -> Any:
        """Return what the model can do besides generating."""
        return self._inner.info(spec)

    def stage(self, parts: StageParts) -> Stage:
        """Return the second half of every step."""
        return Counted(self._inner.stage(parts))

    def admit(self, info: Any, params: Any) -> tuple[Any, SamplingParams]:
        """Return a request's parameters, complete."""
        return self._inner.admit(info, params)

    def calls(self, front: Any, run: Any) -> Calls:
        """Return what users may ask for besides generating."""
        return self._inner.calls(front, run)


class Counted:
    """Counts what comes by."""

    def __init__(self, inner: Stage) -> None:
        self._inner = inner
        self.num_tokens = 0
        """Tokens that were computed."""

    def added(self, new: NewRow) -> str | None:
        """A request takes a row."""
        return self._inner.added(new)

    def removed(self, row: int) -> None:
        """It has left."""
        self._inner.removed(row)

    def token_types(self, inputs: StepRows) -> torch.Tensor | None:
        """Return which text of its prompt each token belongs to."""
        return self._inner.token_types(inputs)

    def run(
        self, plan: StepPlan, inputs: StepRows, hidden: torch.Tensor, errors: dict[int, str]
    ) -> Any:
        """Return the step's result."""
        self.num_tokens += len(hidden)
        return self._inner.run(plan, inputs, hidden, errors)

    def take(self, inputs: StepRows, tokens: torch.Tensor) -> None:
        """Note tokens that were made on another rank."""
        self._inner.take(inputs, tokens)
