"""A plugin for tests: connector `lookup_folder`, which is looked up instead of listed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from builtin_plugins.kv_connectors.api import BlockKey, KVTransferConfig, StoreParts
from builtin_plugins.kv_connectors.block_files import block_path
from builtin_plugins.kv_connectors.disk import Disk, Folder
from core.api import EngineConfig, Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    target = "tests.builtin_plugins.kv_connectors.lookup_connector:LookupDisk"
    return [Entry("lookup_folder", target, "a folder that is looked up")]


class LookupDisk(Disk):
    """`disk` with lookups. `fault`: lookups fail or hang."""

    supports_lookup = True

    def __init__(self, config: EngineConfig, settings: KVTransferConfig) -> None:
        extra = dict(settings.kv_connector_extra_config)
        self._fault = extra.pop("fault", "")
        super().__init__(config, replace(settings, kv_connector_extra_config=extra))

    def store(self, parts: StoreParts) -> Folder:
        path = Path(self._settings.folder) / parts.fingerprint
        return LookupFolder(path, parts.block_bytes, self._fault)


class LookupFolder(Folder):
    """A folder that lists nothing."""

    def __init__(self, path: Path, block_bytes: Sequence[int], fault: str) -> None:
        super().__init__(path, block_bytes)
        self._folder = path
        self._fault = fault
        self._closed = threading.Event()

    def survey(self) -> Iterable[BlockKey]:
        return ()

    def lookup(self, keys: Sequence[BlockKey]) -> Iterable[Any]:
        if self._fault == "fails":
            raise OSError(5, "Input/output error")
        if self._fault == "hangs":
            self._closed.wait()
        return [key for key in keys if (self._folder / block_path(key)).exists()]

    def close(self) -> None:
        self._closed.set()
