"""Entries of acme: a scheduler extension, and the option that enables it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import Option, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.features import SchedulerExtension

EXAMPLE_OPTIONS = {"acme_max_running": 2}
"""Options that enable the extension, for the conformance suite."""


@hookimpl
def engine_options() -> list[Option]:
    """Return the option."""
    return [
        Option(
            "acme_max_running",
            int,
            0,
            "Maximum number of running requests; 0: no limit.",
        )
    ]


@hookimpl
def engine_scheduler_extensions(
    config: EngineConfig, registry: Registry
) -> list[SchedulerExtension]:
    """Return the extension if the option enables it."""
    # lazy: not imported when plugins are listed
    from engine_acme.scheduling import Acme

    return [Acme(config.options["acme_max_running"])] if config.options["acme_max_running"] else []
