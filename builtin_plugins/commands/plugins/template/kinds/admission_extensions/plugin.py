"""What acme brings: a half at the edge, which sees requests before the engine does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import hookimpl

if TYPE_CHECKING:
    from core.api import AdmissionExtension, EngineConfig, Registry

EXAMPLE_REQUESTS = [({"acme": "hello "}, "there", "hello there")]
"""What clients give, a prompt, and the prompt as it becomes: the conformance suite tries it."""


@hookimpl
def engine_admission_extensions(
    config: EngineConfig, registry: Registry
) -> list[AdmissionExtension]:
    """Return the half; none where the configuration switches the feature off."""
    from engine_acme.admission import (
        Acme,
    )  # lazy: imported when an engine starts, not when plugins are listed

    return [Acme()]
