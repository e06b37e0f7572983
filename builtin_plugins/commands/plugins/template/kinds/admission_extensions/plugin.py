"""Entries of acme: an admission extension, which completes requests before scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry
    from core.api.features import AdmissionExtension

EXAMPLE_REQUESTS = [({"acme": "hello "}, "there", "hello there")]
"""Request fields, prompt and resulting prompt, tested by the conformance suite."""


@hookimpl
def engine_admission_extensions(
    config: EngineConfig, registry: Registry
) -> list[AdmissionExtension]:
    """Return the extension; empty when the configuration disables the feature."""
    # lazy: not imported when plugins are listed
    from engine_acme.admission import Acme

    return [Acme()]
