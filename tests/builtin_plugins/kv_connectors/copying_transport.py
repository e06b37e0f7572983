"""A plugin for tests: connector `copying`, a transport between engines of one process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

from builtin_plugins.kv_connectors.tcp.transport import TransportConnector
from core.api import Entry, hookimpl


@hookimpl
def engine_kv_connectors() -> list[Entry]:
    """Return the connector."""
    target = "tests.builtin_plugins.kv_connectors.copying_transport:Copying"
    return [Entry("copying", target, "engines of one process")]


class CopyingTransport:
    """Copies from any registered address."""

    name = "copying"
    registered: ClassVar[dict[int, Any]] = {}
    """Memory of all ends, by address."""
    before_read: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self._own: list[int] = []

    def register(self, memory: Any) -> None:
        self._own.append(memory.ctypes.data)
        self.registered[memory.ctypes.data] = memory

    def metadata(self) -> bytes:
        return b"this process"

    def read(self, metadata: bytes, address: int, buffer: Any, timeout_s: float) -> None:
        assert metadata == b"this process"
        CopyingTransport.before_read()
        for start in (address, buffer.ctypes.data):
            assert any(
                first <= start and start + buffer.nbytes <= first + each.nbytes
                for first, each in self.registered.items()
            )
        ctypes.memmove(buffer.ctypes.data, address, buffer.nbytes)

    def close(self) -> None:
        for address in self._own:
            del self.registered[address]


class Copying(TransportConnector):
    """Connector `copying`."""

    def transport(self) -> CopyingTransport:
        return CopyingTransport()
