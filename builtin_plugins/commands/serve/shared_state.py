"""What several API servers share, and the options of which one process has the state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from core.api import ConfigError, EngineConfig

COUNT: Final = "api_server_count"
OWN_STATE: Final[Mapping[str, str]] = {
    "stream_resume_timeout": "a client may reconnect to another process, which has no events of it",
    "enable_server_load_tracking": "/load would have the requests of one process",
    "enable_runtime_lora": "other processes would not know an adapter that one of them has loaded",
}
"""Options of which the state is in one API server's memory, with the reason of the refusal."""


def num_api_servers(config: EngineConfig) -> int:
    """Return the number of API servers.

    Raises `ConfigError` for options that need one process.
    """
    count: int = config.options.get(COUNT) or 1
    if count == 1:
        return 1
    if config.service.disable_frontend_multiprocessing:
        raise ConfigError(
            f"--api-server-count: got {count}; expected 1 with --disable-frontend-multiprocessing, "
            "which puts all into one process. Remove one of them."
        )
    for name, reason in OWN_STATE.items():
        if config.options.get(name):
            flag = name.replace("_", "-")
            raise ConfigError(
                f"--{flag}: got {config.options[name]}; expected it unset with --api-server-count "
                f"{count}: {reason}. Remove one of them."
            )
    return count


def shared_options(config: EngineConfig, folder: Path) -> dict[str, str]:
    """Return the options of API servers that make them share a store of responses."""
    if config.options.get("responses_store"):
        return {}
    return {"responses_store": str(folder / "responses.sqlite")}
