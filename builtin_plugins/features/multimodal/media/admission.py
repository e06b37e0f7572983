"""Switches the media loader on for models that take images."""

from __future__ import annotations

from builtin_plugins.features.multimodal.media.loader import ImageLoader
from builtin_plugins.features.multimodal.media.settings import IMAGE
from core.api import ConfigError
from core.api.features import AdmissionContext
from core.model_spec.tower import MULTIMODAL


class MediaAdmission:
    """Learns from the started engine whether its model takes images."""

    def __init__(self, loader: ImageLoader, *, text_only: bool = False) -> None:
        self._loader = loader
        self._text_only = text_only

    def attach(self, context: AdmissionContext) -> None:
        """Read the model's facts. Raises `ConfigError` for a model that cannot be text only."""
        takes_images = MULTIMODAL in context.facts
        if takes_images and self._text_only:
            raise ConfigError(
                "--language-model-only: got true for a model with images; expected one without, "
                "since its vision tower is loaded with it. Set --limit-mm-per-prompt "
                "'{\"image\": 0}' instead to refuse images."
            )
        self._loader.modalities = (IMAGE,) if takes_images else ()
