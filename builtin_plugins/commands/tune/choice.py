"""Chooses how a model's weights are stored: as exact as this machine is fast enough for."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from builtin_plugins.commands.plan.command import make_plan
from builtin_plugins.commands.plan.speed import TokenRates, stored_kinds, token_rates
from core.api import ConfigError, EngineConfig, ModelError

if TYPE_CHECKING:
    from core_kernels.speed import Speed

    from core import MemoryPlan
    from core.api.plugins import LoadedRegistry

log = logging.getLogger(__name__)
ROUNDED: Final = ("int8", "int4")
"""Values of `--quantization` that are tried, in the order of exactness."""
MIN_CONTEXT: Final = 4096
"""Context in tokens that memory must hold, unless the model's own is shorter."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to store the weights, and what a start with it takes."""

    quantization: str | None
    """Value of `--quantization`; None: as stored in the checkpoint."""
    plan: MemoryPlan | None
    """Memory of a start; None if the model cannot be stored so."""
    problem: str
    """Why it cannot be served; empty if it can."""

    @property
    def name(self) -> str:
        """Name of the storage in the report."""
        return self.quantization or "as stored"

    @property
    def kinds(self) -> dict[str, float]:
        """Bytes that a token reads, by kind of storage."""
        if self.plan is None:
            return {}
        return stored_kinds(self.plan.token_bytes, self.plan.config.model.quantization or "")

    def rates(self, speeds: Mapping[str, Speed]) -> TokenRates:
        """Return the tokens per second with these speeds."""
        return token_rates(self.kinds, speeds)


def candidates(config: EngineConfig, registry: LoadedRegistry) -> Iterator[Candidate]:
    """Yield the ways to store the weights, in the order of exactness.

    A chosen or stored quantization is the only one. Raises `ModelError` for a model that cannot be
    served at all.
    """
    chosen = config.model.quantization
    is_chosen = config.model.max_model_len not in (None, -1)
    first = _candidate(chosen, _plan(config, registry), is_chosen=is_chosen)
    yield first
    if chosen or (first.plan is not None and first.plan.source.quantization):
        return
    for quantization in ROUNDED:
        changed = replace(config, model=replace(config.model, quantization=quantization))
        try:
            plan = _plan(changed, registry)
        except (ConfigError, ModelError) as error:
            yield Candidate(quantization, None, str(error))
        else:
            yield _candidate(quantization, plan, is_chosen=is_chosen)


def _plan(config: EngineConfig, registry: LoadedRegistry) -> MemoryPlan:
    """Return the memory plan, with one line of progress instead of the engine's own."""
    log.info("planning with weights %s", config.model.quantization or "as stored")
    with _warnings_only(logging.getLogger("core")):
        return make_plan(config, registry)


@contextmanager
def _warnings_only(logger: logging.Logger) -> Iterator[None]:
    """Log nothing below a warning, unless everything is logged (`--log-level debug`)."""
    level = logger.level
    if level == logging.INFO:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


def _candidate(quantization: str | None, plan: MemoryPlan, *, is_chosen: bool) -> Candidate:
    """Return a candidate. `is_chosen`: the context was set, so it is not reduced to what fits."""
    problem = ""
    needed = 0 if is_chosen else min(MIN_CONTEXT, plan.source.max_model_len)
    if plan.short_bytes:
        problem = plan.obstacle or "does not fit into memory"
    elif plan.context_length < needed:
        problem = f"only {plan.context_length:,} tokens of context fit"
    return Candidate(quantization, plan, problem)


def choose(
    found: Sequence[Candidate], speeds: Mapping[str, Speed], tokens_per_s: float
) -> Candidate | None:
    """Return the first candidate that reaches a speed, or the fastest; None if none fits."""
    fitting = [each for each in found if not each.problem]
    for each in fitting:
        if each.rates(speeds).decode >= tokens_per_s:
            return each
    return max(fitting, key=lambda each: each.rates(speeds).decode, default=None)
