"""`tcp` with another way for the blocks: each rank is a transfer engine of Mooncake, and reads from
the memory of others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from builtin_plugins.kv_connectors.api import EXTRA, FLAG, Wired, WiredSettings
from core.api import ConfigError


@dataclass(frozen=True, slots=True)
class MooncakeSettings(WiredSettings):
    """The connector's own."""

    protocol: Literal["rdma", "tcp"] = "rdma"
    device_name: str = ""
    """Of RDMA; empty: Mooncake looks for one."""


class Mooncake(Wired):
    """Connector `mooncake`."""

    kind = MooncakeSettings

    def wire(self) -> MooncakeWire:
        """Return an engine. Raises `ConfigError` where Mooncake is not installed, or cannot begin."""
        own = self.own
        assert isinstance(own, MooncakeSettings)  # noqa: S101 - it is what `kind` says
        return MooncakeWire(self.settings.kv_ip, own.protocol, own.device_name)


class MooncakeWire:
    """A transfer engine that finds others by their addresses, without a server for metadata."""

    name = "mooncake"

    def __init__(self, host: str, protocol: str, device_name: str) -> None:
        try:
            from mooncake.engine import TransferEngine  # what lacks is told with the cure
        except ImportError as error:
            raise ConfigError(
                "the KV connector mooncake needs the package mooncake-transfer-engine, which "
                f"cannot be loaded here: {error}. "
                "Install one of its builds with pip, and the system's libibverbs."
            ) from error
        self._engine = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, device_name):
            raise ConfigError(
                f"{FLAG}.{EXTRA}.protocol {protocol!r} (device_name {device_name!r}): Mooncake "
                f"cannot begin on {host}; its "
                "own messages say why."
            )
        self._where = f"{host}:{self._engine.get_rpc_port()}"
        self._registered: list[int] = []

    def register(self, memory: np.ndarray[Any, Any]) -> None:
        """Register it. Raises `OSError`."""
        if self._engine.register_memory(memory.ctypes.data, memory.nbytes):
            raise OSError(f"Mooncake cannot register {memory.nbytes} bytes of memory")
        self._registered.append(memory.ctypes.data)

    def introduce(self) -> bytes:
        """Return the engine's address."""
        return self._where.encode()

    def read(
        self, introduction: bytes, address: int, place: np.ndarray[Any, Any], timeout_s: float
    ) -> None:
        """Transfer; how long that may take is Mooncake's to say (`MC_TRANSFER_TIMEOUT`).

        Raises `OSError`.
        """
        if self._engine.transfer_sync_read(
            introduction.decode(), place.ctypes.data, address, place.nbytes
        ):
            raise OSError("a transfer failed")

    def close(self) -> None:
        """Give back what was registered."""
        for address in self._registered:
            self._engine.unregister_memory(address)
