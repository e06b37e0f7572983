"""Starts the ranks of one engine on several hosts; messages travel over the engine's channels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from builtin_plugins.executors.api import RemoteChild, Start, TcpListener
from builtin_plugins.launchers.contract import Group
from builtin_plugins.launchers.nodes.head import NodePort
from builtin_plugins.launchers.nodes.host_process import HostProcess
from builtin_plugins.launchers.nodes.keys import read_keys
from builtin_plugins.launchers.nodes.layout import node_of
from builtin_plugins.launchers.nodes.messages import Join
from builtin_plugins.launchers.nodes.settings import (
    NodeSettings,
    check_nodes,
    difference,
    model_hash,
)
from core import __version__
from core.api import ConfigError, EngineError

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry


class NodesLauncher:
    """Starts the first ranks on this host, and the others on the nodes that join it."""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        """Raises `ConfigError` for settings that cannot work."""
        check_nodes(config)
        self._config = config
        self._registry = registry
        self._settings = NodeSettings.from_config(config)
        if self._settings.node_rank:
            raise ConfigError(
                f"--node-rank: got {self._settings.node_rank}; expected 0, since this engine is "
                "the head. Run `engine serve MODEL --headless` on the other nodes."
            )
        self._keys = read_keys(self._settings.key_file) if self._settings.num_nodes > 1 else None
        self._listener = TcpListener(self._settings.master_addr, "--master-addr")
        self.host = self._listener.host
        self._port: NodePort | None = None

    def start(
        self, what: Start, kinds: Any, environment: Mapping[str, str], group: Group
    ) -> RemoteChild:
        """Start a process here, or on its node when that has joined."""
        node = node_of(what.rank, group.size, self._settings.num_nodes)
        port = self._open_port() if node else None
        child = RemoteChild(self._listener, what, kinds)
        if port is not None:
            child.process = port.launch(node, child.credentials, environment)
            return child
        credentials = msgspec.structs.replace(child.credentials, host=self.host)
        try:
            child.process = HostProcess(credentials, environment)
        except OSError as error:
            raise EngineError(f"process {what.process!r} cannot be started: {error}") from error
        return child

    def _open_port(self) -> NodePort:
        if self._port is None:
            if self._keys is None:
                raise EngineError("one node has no port for others")
            model = model_hash(self._config, self._registry)
            self._port = NodePort(
                self._listener, self._settings, self._keys, lambda join: self._check(join, model)
            )
        return self._port

    def _check(self, join: Join, model: str) -> str:
        """Return why a node is refused; empty: it belongs to this head."""
        if join.version != __version__:
            return f"the node has version {join.version} of the engine; the head has {__version__}"
        node = f"node {join.node_rank} at {join.address}"
        if text := difference(self._config, join.settings, node):
            return text
        if join.model != model:
            return (
                f"MODEL: got other files in {self._config.model.model} on {node} than on the head; "
                "expected equal ones. Copy the model to all nodes."
            )
        return ""

    def close(self) -> None:
        """Release the nodes, and stop listening."""
        if self._port is not None:
            self._port.close()
        self._listener.close()
