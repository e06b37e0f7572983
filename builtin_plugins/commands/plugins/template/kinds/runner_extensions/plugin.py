"""What acme brings: a half on every rank beside the model, and the option that switches it on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import Option, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry, RunnerExtension

EXAMPLE_OPTIONS = {"acme_cap": 5.0}
"""With these the half is there: the conformance suite starts engines with them."""


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
    """Return the half where the option asks for it."""
    from engine_acme.bending import Acme  # lazy: it may import torch

    return [Acme(config.options["acme_cap"])] if config.options["acme_cap"] else []
