"""Hook of this plugin: check settings without a model and without an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.api import hookspec

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry


@hookspec
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    """Raise `ConfigError` for settings of this plugin that a start refuses, whatever the model.

    Opens no port and no file, and is quick while the settings have their defaults. Implement it
    with `@hookimpl(optionalhook=True)`: `engine config` may be off.
    """
    raise NotImplementedError
