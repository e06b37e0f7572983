"""Connector `mooncake`: like `tcp`, but each rank reads blocks by a Mooncake transfer engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from builtin_plugins.kv_connectors.api import EXTRA, FLAG, TransportConnector, TransportSettings
from core.api import ConfigError


@dataclass(frozen=True, slots=True)
class MooncakeSettings(TransportSettings):
    """The connector's own settings."""

    protocol: Literal["rdma", "tcp"] = "rdma"
    device_name: str = ""
    """RDMA device; empty: Mooncake selects one."""


class Mooncake(TransportConnector):
    """Connector `mooncake`."""

    kind = MooncakeSettings

    def transport(self) -> MooncakeTransport:
        """Return a transport. Raises `ConfigError` if Mooncake is missing or cannot start."""
        own = self.own
        assert isinstance(own, MooncakeSettings)  # noqa: S101 - by `kind`
        return MooncakeTransport(self.settings.kv_ip, own.protocol, own.device_name)


class MooncakeTransport:
    """A transfer engine that finds peers by address, without a metadata server."""

    name = "mooncake"

    def __init__(self, host: str, protocol: str, device_name: str) -> None:
        try:
            from mooncake.engine import TransferEngine  # lazy: the error names the packages
        except ImportError as error:
            raise ConfigError(
                "the KV connector mooncake needs the package mooncake-transfer-engine, which "
                f"cannot be loaded: {error}. Install one of its builds with pip, and the "
                "system's libibverbs."
            ) from error
        self._engine = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", protocol, device_name):
            raise ConfigError(
                f"{FLAG}.{EXTRA}.protocol {protocol!r} (device_name {device_name!r}): Mooncake "
                f"cannot start on {host}. See its log messages."
            )
        self._address = f"{host}:{self._engine.get_rpc_port()}"
        self._registered: list[int] = []

    def register(self, memory: np.ndarray[Any, Any]) -> None:
        """Register memory. Raises `OSError`."""
        if self._engine.register_memory(memory.ctypes.data, memory.nbytes):
            raise OSError(f"Mooncake cannot register {memory.nbytes} bytes of memory")
        self._registered.append(memory.ctypes.data)

    def metadata(self) -> bytes:
        """Return the transfer engine's address."""
        return self._address.encode()

    def read(
        self, metadata: bytes, address: int, buffer: np.ndarray[Any, Any], timeout_s: float
    ) -> None:
        """Read memory of a peer. Raises `OSError`.

        Mooncake has its own timeout (`MC_TRANSFER_TIMEOUT`); `timeout_s` is ignored.
        """
        if self._engine.transfer_sync_read(
            metadata.decode(), buffer.ctypes.data, address, buffer.nbytes
        ):
            raise OSError("a transfer failed")

    def close(self) -> None:
        """Unregister all memory."""
        for address in self._registered:
            self._engine.unregister_memory(address)
