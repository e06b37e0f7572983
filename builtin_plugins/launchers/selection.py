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
NODES: Final = "nodes"
NNODES: Final = "nnodes"
"""Option: number of hosts that the ranks of an engine are on."""


def is_local(config: EngineConfig) -> bool:
    """Return whether the launcher of `--launcher` starts processes of this machine."""
    return bool(config.options.get(OPTION, LOCAL) == LOCAL)


def is_on_this_host(config: EngineConfig, registry: Registry) -> bool:
    """Return whether this engine's process and its ranks are on the host of the server.

    Called in the engine's process, when its ranks have a launcher.
    """
    launchers: list[Launcher] = registry.shared(IN_USE, list)
    return is_local(config) and not any(launcher.host for launcher in launchers)


def make_launcher(config: EngineConfig, registry: Registry, name: str = "") -> Launcher:
    """Return a new launcher: the named one, or that of `--launcher`.

    Raises `ConfigError` for an unknown name.
    """
    chosen = registry.choose("launchers", name or config.options.get(OPTION, LOCAL))
    launcher: Launcher = registry.load(chosen)(config, registry)
    registry.shared(IN_USE, list).append(launcher)
    return launcher


def launcher_of_ranks(config: EngineConfig) -> str:
    """Return the name of the ranks' launcher: with several nodes, one that reaches all of them."""
    name: str = NODES if config.options.get(NNODES, 1) > 1 else config.options.get(OPTION, LOCAL)
    return name
