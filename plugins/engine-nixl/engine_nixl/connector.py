"""`tcp` with another way for the blocks: each rank is a NIXL agent, and reads from the memory of
others.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

from builtin_plugins.kv_connectors.api import EXTRA, FLAG, Wired, WiredSettings
from core.api import ConfigError

POLL_S: Final = 50e-6


@dataclass(frozen=True, slots=True)
class NixlSettings(WiredSettings):
    """The connector's own; names as in vLLM where it has any."""

    backends: list[str] = field(default_factory=lambda: ["UCX"])
    """NIXL's plugins that move bytes."""


class Nixl(Wired):
    """Connector `nixl`."""

    kind = NixlSettings

    def wire(self) -> NixlWire:
        """Return an agent. Raises `ConfigError` for backends that this NIXL does not have."""
        assert isinstance(self.own, NixlSettings)  # noqa: S101 - it is what `kind` says
        return NixlWire(self.own.backends)


class NixlWire:
    """An agent, and those it has read from. For one thread."""

    name = "nixl"

    def __init__(self, backends: list[str]) -> None:
        self._agent = nixl_agent(secrets.token_hex(8), nixl_agent_config(backends=[]))
        known = self._agent.get_plugin_list()
        if not backends or not {*backends} <= {*known}:
            raise ConfigError(
                f"{FLAG}.{EXTRA}.backends {backends!r}: this NIXL has {', '.join(sorted(known))}."
            )
        for backend in backends:
            self._agent.create_backend(backend)
        self._registered: list[Any] = []
        self._others: dict[bytes, str] = {}
        """Names of agents, by their introductions."""

    def register(self, memory: np.ndarray[Any, Any]) -> None:
        """Register it with all backends."""
        self._registered.append(
            self._agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
        )

    def introduce(self) -> bytes:
        """Return the agent's metadata."""
        metadata: bytes = self._agent.get_agent_metadata()
        return metadata

    def read(
        self, introduction: bytes, address: int, place: np.ndarray[Any, Any], timeout_s: float
    ) -> None:
        """Transfer and wait. An agent that fails is forgotten: it introduces itself anew."""
        if introduction not in self._others:
            self._others[introduction] = self._agent.add_remote_agent(introduction)
        other = self._others[introduction]
        try:
            self._transfer(other, address, place, timeout_s)
        except BaseException:
            del self._others[introduction]
            with suppress(Exception):
                self._agent.remove_remote_agent(other)
            raise

    def _transfer(
        self, other: str, address: int, place: np.ndarray[Any, Any], timeout_s: float
    ) -> None:
        agent = self._agent
        here = agent.get_xfer_descs([(place.ctypes.data, place.nbytes, 0)], "DRAM")
        there = agent.get_xfer_descs([(address, place.nbytes, 0)], "DRAM")
        handle = agent.initialize_xfer("READ", here, there, other)
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
        """Give back what was registered."""
        for other in self._others.values():
            with suppress(Exception):
                self._agent.remove_remote_agent(other)
        for each in self._registered:
            self._agent.deregister_memory(each)
