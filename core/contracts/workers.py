"""Workers: what computes on one device, driven by plans. Executors make them, through the registry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from core.contracts.parallel import ParallelGroup, Pipeline
    from core.contracts.platforms import Platform
    from core.contracts.runners import Pending
    from core.model_spec.kv import KVLayout
    from core.step import StepPlan, WorkerInfo

Join = Callable[["Platform"], "tuple[ParallelGroup, Pipeline]"]
"""Returns this rank's place among those that hold the model, once the others are there."""


class Worker(Protocol):
    """One rank: a model or its part, its cache and its rows. Constructed with (config, registry,
    source[, join]).

    Without `join` it holds the whole model. All of it is called by one thread.
    """

    told: Callable[[str, bytes], None]
    """Set by the executor: called, from any thread, with the name of a feature and what its half
    here tells outside of steps.
    """

    @property
    def reports(self) -> bool:
        """Say whether some feature's half may answer steps, so that the results of all ranks count."""

    def start(self) -> WorkerInfo:
        """Build and fill the model. Raises `ModelError` or `ConfigError` with one clear block."""

    def allocate(self, layout: KVLayout, first_layer: int = 0) -> None:
        """Make the cache; `first_layer` is the index in the layout of this stage's first caching
        layer.
        """

    def execute(self, plan: StepPlan) -> Pending:
        """Run one step, or only begin it: the next may be executed before `Pending.get` of this
        one, not before its turn.

        A step that fails raises here or in `get`; the next one runs. `LastStageFailed`
        (`core.errors`) is that of a stage which did its part.
        """

    def call(self, name: str, data: bytes) -> bytes | None:
        """Return what the half here of the feature answers to "feature.verb"; None where it has
        nothing to say.
        """

    def close(self) -> None:
        """End what works beside the caller's thread; safe to call twice."""
