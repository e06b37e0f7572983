"""Tiny random vision-language checkpoints with their processors, one module for each family.

A new model is a function and an entry in its module's `MODELS`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Final

from tests.builtin_plugins.models.vision.checkpoints.common import VisionModel


def _found() -> dict[str, VisionModel]:
    """Return the models of all modules of this folder, by name."""
    found: dict[str, VisionModel] = {}
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        found |= getattr(importlib.import_module(module.name), "MODELS", {})
    return dict(sorted(found.items()))


MODELS: Final[Mapping[str, VisionModel]] = _found()
