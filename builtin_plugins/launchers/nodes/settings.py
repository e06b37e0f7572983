"""The settings of an engine on several nodes, and what a node must have in common with its head."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.launchers.nodes.layout import num_nodes
from builtin_plugins.launchers.selection import LOCAL, NODES, OPTION
from core.api import ConfigError

if TYPE_CHECKING:
    from core.api import EngineConfig, Registry

OWN: Final = frozenset(
    (
        *("node_rank", "headless", "master_addr", "master_port", "node_address", "node_key"),
        *("node_timeout", "log_level", "journal"),
    )
)
"""Settings that may differ between nodes."""
SECRETS: Final = ("token", "key", "password", "secret")
"""Name endings of settings that are not sent to the head."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where the head and its nodes meet."""

    num_nodes: int
    node_rank: int
    master_addr: str
    master_port: int
    address: str | None
    """This node's own address; None: that of its connection to the head."""
    key_file: str | None
    timeout_s: float
    """Longest wait of nodes for each other."""

    @classmethod
    def from_config(cls, config: EngineConfig) -> NodeSettings:
        """Return the settings."""
        options = config.options
        return cls(
            num_nodes=num_nodes(config),
            node_rank=options["node_rank"],
            master_addr=options["master_addr"],
            master_port=options["master_port"],
            address=options["node_address"],
            key_file=options["node_key"],
            timeout_s=options["node_timeout"],
        )


def check_nodes(config: EngineConfig) -> None:
    """Raise `ConfigError` for an engine that cannot run on `--nnodes` nodes."""
    nodes = num_nodes(config)
    options = config.options
    if nodes == 1:
        if options["headless"]:
            raise ConfigError(
                "--headless: got it with --nnodes 1; expected --nnodes 2 or more. Correct it."
            )
        return
    parallel = config.parallel
    size = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    is_head = options["node_rank"] == 0
    if options["node_rank"] >= nodes:
        raise ConfigError(
            f"--node-rank: got {options['node_rank']}; expected 0 to {nodes - 1} with --nnodes "
            f"{nodes}. Correct it."
        )
    if is_head == options["headless"]:
        found = "--headless with --node-rank 0" if is_head else "no --headless"
        expected = "--node-rank 1 or more" if is_head else "it with --node-rank 1 or more"
        raise ConfigError(
            f"--headless: got {found}; expected {expected}. The node with rank 0 serves; run "
            "`engine serve MODEL --headless` on each other."
        )
    if not is_head:
        return  # the head checks what it sends
    if size % nodes:
        raise ConfigError(
            f"--nnodes: got {nodes} for {size} ranks (--tensor-parallel-size times "
            "--pipeline-parallel-size); expected a divisor of that. Correct one of them."
        )
    if parallel.data_parallel_size > 1:
        raise ConfigError(
            f"--nnodes: got {nodes} with --data-parallel-size {parallel.data_parallel_size}; "
            "expected one engine. Remove one of them."
        )
    if parallel.distributed_executor_backend not in (None, "mp"):
        raise ConfigError(
            f"--nnodes: got {nodes} with --distributed-executor-backend "
            f"{parallel.distributed_executor_backend}; expected mp. Remove one of them."
        )
    if options.get(OPTION, LOCAL) not in (LOCAL, NODES):
        raise ConfigError(
            f"--launcher: got {options[OPTION]}; expected {LOCAL} with --nnodes. Remove it."
        )


def given_settings(config: EngineConfig, names: Iterable[str]) -> dict[str, str]:
    """Return the settings with these names as JSON, without those of one node and secrets."""
    chosen = {"model", *names} - OWN
    return {
        name: msgspec.json.encode(_value(config, name)).decode()
        for name in sorted(chosen)
        if not name.endswith(SECRETS)
    }


def difference(config: EngineConfig, given: dict[str, str], node: str) -> str:
    """Return the error of the first setting of a node that the head does not have; empty: none."""
    own = given_settings(config, given)
    for name, value in given.items():
        if own.get(name) != value:
            flag = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
            expected = f"expected {own.get(name)}, as on the head"
            return f"{flag}: got {value} on {node}; {expected}. Correct it."
    return ""


def model_hash(config: EngineConfig, registry: Registry) -> str:
    """Return the content hash of the model. Raises `ConfigError` for a model that is not found."""
    source = registry.find_model(config.model.model, config)
    if source is None:
        raise ConfigError(
            f"MODEL: got {config.model.model}; expected a model that this node has. Correct it."
        )
    return source.identity


def _value(config: EngineConfig, name: str) -> Any:
    """Return a setting by its flat name; None for one that does not exist here."""
    if name in config.options:
        return config.options[name]
    for section in dataclasses.fields(config):
        found = getattr(config, section.name)
        if dataclasses.is_dataclass(found) and hasattr(found, name):
            return getattr(found, name)
    return None
