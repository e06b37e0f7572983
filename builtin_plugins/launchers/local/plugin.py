"""The launcher `local`, and the option that chooses a launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builtin_plugins.clients.api import broker_connection
from builtin_plugins.launchers.selection import IN_USE, LOCAL, OPTION
from core.api import ConfigError, Entry, Option, hookimpl

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry


@hookimpl
def engine_launchers() -> list[Entry]:
    """Return the launcher."""
    target = "builtin_plugins.launchers.local.launcher:LocalLauncher"
    return [Entry(LOCAL, target, "processes of this machine", requires=("pyzmq>=26",))]


@hookimpl
def engine_options() -> list[Option]:
    """Return `--launcher`."""
    return [
        Option(
            OPTION,
            str,
            LOCAL,
            "Launcher that starts the engine's processes: engine processes, and the ranks of the "
            "executor `mp`.",
        )
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    registry.choose("launchers", config.options[OPTION])


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    """Raise `ConfigError` if a launcher was chosen for an engine that starts no process."""
    name = config.options[OPTION]
    if broker_connection(registry) is not None:  # the broker's process has the launcher
        return []
    if name != LOCAL and not registry.shared(IN_USE, list):
        raise ConfigError(
            f"--launcher: got {name}; expected local, because this engine runs in one process. "
            "Add --distributed-executor-backend mp."
        )
    return []
