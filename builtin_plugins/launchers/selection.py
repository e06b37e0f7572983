"""Finds the launcher that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from builtin_plugins.launchers.contract import Launcher
    from core.api import EngineConfig, Registry

OPTION: Final = "launcher"
IN_USE: Final = "launchers"
"""Name of the list of this process's launchers in `Registry.shared`."""
LOCAL: Final = "local"


def make_launcher(config: EngineConfig, registry: Registry, name: str = "") -> Launcher:
    """Return a new launcher: the named one, or that of `--launcher`.

    Raises `ConfigError` for an unknown name.
    """
    chosen = registry.choose("launchers", name or config.options.get(OPTION, LOCAL))
    launcher: Launcher = registry.load(chosen)(config, registry)
    registry.shared(IN_USE, list).append(launcher)
    return launcher
