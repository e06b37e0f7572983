"""Connector `nixl`: like `tcp`, but each rank reads blocks by a NIXL agent."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from builtin_plugins.kv_connectors.api import EXTRA, FLAG, TransportConnector, TransportSettings
from core.api import ConfigError

POLL_S: Final = 50e-6


@dataclass(frozen=True, slots=True)
class NixlSettings(TransportSettings):
    """The connector's own settings; named as in vLLM."""

    backends: list[str] = field(default_factory=lambda: ["UCX"])
    """NIXL's plugins that move bytes."""


class Nixl(TransportConnector):
    """Connector `nixl`."""

    kind = NixlSettings

    def transport(self) -> NixlTransport:
        """Return a transport. Raises `ConfigError` for backends that this NIXL does not have."""
        assert isinstance(self.own, NixlSettings)  # noqa: S101 - by `kind`
        return NixlTransport(self.own.backends)


class NixlTransport:
    """An agent and its remote agents. For one thread."""

    name = "nixl"

    def __init__(self, backends: list[str]) -> None:
        self._agent = nixl_agent(secrets.token_hex(8), nixl_agent_config(backends=[]))
        known = self._agent.get_plugin_list()
        if not backends or not {*backends} <= {*known}:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.backends: got {backends!r}; expected some of this NIXL's "
                f"{', '.join(sorted(known))}."
            )
        for backend in backends:
            self._agent.create_backend(backend)
        self._registered: list[Any] = []
        self._remote_agents: dict[bytes, str] = {}
        """Names of remote agents, by metadata."""

    def register(self, memory: np.ndarray[Any, Any]) -> None:
        """Register memory with all backends."""
        self._registered.append(
            self._agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
        )

    def metadata(self) -> bytes:
        """Return the agent's metadata."""
        metadata: bytes = self._agent.get_agent_metadata()
        return metadata

    def read(
        self, metadata: bytes, address: int, buffer: np.ndarray[Any, Any], timeout_s: float
    ) -> None:
        """Read memory of a peer. A remote agent that fails is removed, and added again later."""
        if metadata not in self._remote_agents:
            self._remote_agents[metadata] = self._agent.add_remote_agent(metadata)
        remote = self._remote_agents[metadata]
        try:
            self._transfer(remote, address, buffer, timeout_s)
        except BaseException:
            del self._remote_agents[metadata]
            with suppress(Exception):
                self._agent.remove_remote_agent(remote)
            raise

    def _transfer(
        self, remote: str, address: int, buffer: np.ndarray[Any, Any], timeout_s: float
    ) -> None:
        agent = self._agent
        target = agent.get_xfer_descs([(buffer.ctypes.data, buffer.nbytes, 0)], "DRAM")
        source = agent.get_xfer_descs([(address, buffer.nbytes, 0)], "DRAM")
        handle = agent.initialize_xfer("READ", target, source, remote)
        try:
            until_s = time.monotonic() + timeout_s
            state = agent.transfer(handle)
            while state == "PROC":
                if time.monotonic() > until_s:
                    raise TimeoutError(f"a transfer was not done within {timeout_s:g} s")
                time.sleep(POLL_S)
                state = agent.check_xfer_state(handle)
            if state != "DONE":
                raise OSError(f"a transfer ended as {state}")
        finally:
            handle.release()

    def close(self) -> None:
        """Remove remote agents and unregister all memory."""
        for remote in self._remote_agents.values():
            with suppress(Exception):
                self._agent.remove_remote_agent(remote)
        for each in self._registered:
            self._agent.deregister_memory(each)
