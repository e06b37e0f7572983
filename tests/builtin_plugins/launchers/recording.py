"""A launcher that writes down which processes it starts, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builtin_plugins.executors.api import Start
from builtin_plugins.launchers.api import ChildProcess, Group, make_launcher
from core.api import EngineConfig, Entry, Option, Registry, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    return [Option("recording_file", str, "", "File to write names of processes to.")]


@hookimpl
def engine_launchers() -> list[Entry]:
    return [Entry("recording", Recording, "records processes")]


class Recording:
    host = ""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        self._file = Path(config.options["recording_file"])
        self._inner = make_launcher(config, registry, "local")

    def start(
        self, what: Start, kinds: Any, environment: Mapping[str, str], group: Group
    ) -> ChildProcess:
        with self._file.open("a") as file:
            file.write(f"{what.process} of {group.name}, {group.size}\n")
        return self._inner.start(what, kinds, environment, group)

    def close(self) -> None:
        with self._file.open("a") as file:
            file.write("closed\n")
        self._inner.close()
