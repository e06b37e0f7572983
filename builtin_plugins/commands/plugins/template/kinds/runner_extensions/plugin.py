"""Entries of acme: a runner extension, and the option that enables it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import Option, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.execution import RunnerExtension

EXAMPLE_OPTIONS = {"acme_cap": 5.0}
"""Options that enable the extension, for the conformance suite."""


@hookimpl
def engine_options() -> list[Option]:
    """Return the option."""
    return [
        Option(
            "acme_cap",
            float,
            0.0,
            "Logits are bent so that none passes this; 0: they stay as they are.",
        )
    ]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[RunnerExtension]:
    """Return the extension if the option enables it."""
    from engine_acme.worker import Acme  # lazy: may import torch

    return [Acme(config.options["acme_cap"])] if config.options["acme_cap"] else []
