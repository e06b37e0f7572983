"""What `--collect-detailed-traces` asks for, and what crosses between the halves.

Knows no OpenTelemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import msgspec

from core.api import ConfigError, EngineConfig

NAME: Final = "tracing"
CHOICES: Final = ("all", "model", "worker")


@dataclass(frozen=True, slots=True)
class Detail:
    """Which times of steps are taken; false where none are."""

    model: bool = False
    worker: bool = False

    @classmethod
    def of(cls, config: EngineConfig) -> Self:
        """Read the option, whose values may be joined by commas.

        Raises `ConfigError` for one that is not known.
        """
        given = config.options.get("collect_detailed_traces") or []
        wanted = {name.strip() for value in given for name in value.split(",")}
        if unknown := sorted(wanted - set(CHOICES)):
            raise ConfigError(
                f"--collect-detailed-traces {unknown[0]!r} is none of {', '.join(CHOICES)}."
            )
        everything = "all" in wanted
        return cls(everything or "model" in wanted, everything or "worker" in wanted)

    def __bool__(self) -> bool:
        return self.model or self.worker


class StepTime(msgspec.Struct, array_like=True):
    """What one rank took for one step, in seconds; None: not asked for."""

    step: int
    forward_s: float | None
    execute_s: float | None


class Stay(msgspec.Struct, array_like=True):
    """A sequence's time in the engine; times are those of the machine's monotonic clock."""

    context: bytes
    """The request's feature: where its span is found."""
    engine_id: str
    pid: int
    """Of the engine's process."""
    arrived_s: float
    preemptions: int = 0
    places: list[tuple[float, float]] = []
    """When it got a place in the batch, and when it lost it."""
    forward_s: float | None = None
    """Forward passes of the steps that computed it, whoever else they computed."""
    execute_s: float | None = None
    """Those steps as a whole."""
