"""Switches the media loader on for models that take images."""

from __future__ import annotations

from typing import Final

from builtin_plugins.features.multimodal.media.loader import ImageLoader
from builtin_plugins.features.multimodal.media.settings import IMAGE
from core.api.features import AdmissionContext

FEATURE: Final = "multimodal"
"""Feature name of the model's facts."""


class MediaAdmission:
    """Learns from the started engine whether its model takes images."""

    def __init__(self, loader: ImageLoader) -> None:
        self._loader = loader

    def attach(self, context: AdmissionContext) -> None:
        """Read the model's facts."""
        self._loader.modalities = (IMAGE,) if FEATURE in context.facts else ()
