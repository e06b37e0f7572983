"""A plugin for tests: connector `asked`, a folder that others write to and that is asked about
instead of being listed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builtin_plugins.kv_connectors.disk import Disk, Folder
from builtin_plugins.kv_connectors.names import path_of
from core.api import BlockKey, EngineConfig, Entry, KVTransferConfig, StoreParts, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    return [Entry("asked", "tests.kv_connectors.asked:Asked", "a folder that is asked about")]


class Asked(Disk):
    """`disk`, whose stores are asked; `fault`: they fail at it, or hang."""

    looks = True

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        extra = dict(settings.kv_connector_extra_config)
        self._fault = extra.pop("fault", "")
        super().__init__(config, replace(settings, kv_connector_extra_config=extra))

    def store(self, parts: StoreParts) -> Folder:
        path = Path(self._settings.folder) / parts.fingerprint
        return Askable(path, parts.block_bytes, self._fault)


class Askable(Folder):
    """Says nothing of its own accord."""

    def __init__(self, path: Path, block_bytes: Sequence[int], fault: str) -> None:
        super().__init__(path, block_bytes)
        self._where = path
        self._fault = fault
        self._closed = threading.Event()

    def survey(self) -> Iterable[BlockKey]:
        return ()

    def look(self, keys: Sequence[BlockKey]) -> Iterable[Any]:
        if self._fault == "fails":
            raise OSError(5, "Input/output error")
        if self._fault == "hangs":
            self._closed.wait()
        return [key for key in keys if (self._where / path_of(key)).exists()]

    def close(self) -> None:
        self._closed.set()
