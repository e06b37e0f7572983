"""`ModelRegistry`: which architectures there are.

Others come as plugins, and nothing is registered in passing.
"""

from __future__ import annotations

from typing import Any, NoReturn

from core.errors import ConfigError
from core.plugin import load_plan, make_plan


class ModelRegistry:
    """Names of architectures, as a checkpoint's `config.json` has them."""

    @staticmethod
    def get_supported_archs() -> list[str]:
        """Return the architectures of all plugins that are on by themselves."""
        return sorted(
            found.entry.name for found in load_plan(make_plan([], None)).entries("models")
        )

    @staticmethod
    def register_model(model_arch: str, model_cls: Any) -> NoReturn:
        """Raise `ConfigError` that says how a model is brought."""
        raise ConfigError(
            f"{model_arch!r} cannot be registered from a program: processes of the engine would "
            "not know it. Write a "
            "plugin with the hook engine_models (docs/models.md) and name it: LLM(..., "
            "plugins=['+./my_model.py'])."
        )
