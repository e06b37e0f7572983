"""What acme brings: a half beside the scheduler, and the option that switches it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import Option, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry, SchedulerExtension

EXAMPLE_OPTIONS = {"acme_most": 2}
"""With these the half is there: the conformance suite starts engines with them."""


@hookimpl
def engine_options() -> list[Option]:
    """Return the option."""
    return [
        Option(
            "acme_most",
            int,
            0,
            "Requests that may run at once, however many rows there are; 0: no limit.",
        )
    ]


@hookimpl
def engine_scheduler_extensions(
    config: EngineConfig, registry: Registry
) -> list[SchedulerExtension]:
    """Return the half where the option asks for it."""
    from engine_acme.scheduling import (
        Acme,
    )  # lazy: imported when an engine starts, not when plugins are listed

    return [Acme(config.options["acme_most"])] if config.options["acme_most"] else []
