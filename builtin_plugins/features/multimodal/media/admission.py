"""Switches the media loader on for models that take images."""

from __future__ import annotations

from builtin_plugins.features.multimodal.media.loader import ImageLoader
from builtin_plugins.features.multimodal.media.settings import IMAGE
from core.api.features import AdmissionContext
from core.model_spec.tower import MULTIMODAL


class MediaAdmission:
    """Learns from the started engine whether its model takes images."""

    def __init__(self, loader: ImageLoader) -> None:
        self._loader = loader

    def attach(self, context: AdmissionContext) -> None:
        """Read the model's facts."""
        self._loader.modalities = (IMAGE,) if MULTIMODAL in context.facts else ()
