"""The engine's configuration: sections, and where their values come from."""

from core.config.sections import EngineConfig

__all__ = ["EngineConfig"]
