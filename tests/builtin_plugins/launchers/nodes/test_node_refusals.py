"""Heads and nodes that do not fit are refused by name, before any process is started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.executors.api import TcpListener
from builtin_plugins.launchers.nodes.head import NodePort
from builtin_plugins.launchers.nodes.keys import read_keys
from builtin_plugins.launchers.nodes.launcher import NodesLauncher
from builtin_plugins.launchers.nodes.layout import node_of, ranks_per_node
from builtin_plugins.launchers.nodes.messages import Join
from builtin_plugins.launchers.nodes.node import Node, run_node
from builtin_plugins.launchers.nodes.settings import (
    NodeSettings,
    check_nodes,
    difference,
    given_settings,
)
from core import __version__
from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.errors import ConfigError
from core.plugin import load_plan, make_plan
from scripts.generate_docs import builtins
from tests.timeouts import TIMEOUT_S

HEAD = "127.0.0.2"
ABSENT = "192.0.2.1"
"""An address of documentation, which no interface has."""
OPTIONS = list(builtins().options())


def config_of(**fields: Any) -> EngineConfig:
    sizes = {"tensor_parallel_size": 2, "nnodes": 2}
    return config_from_kwargs({"model": "scripted:", **sizes, **fields}, OPTIONS)


@pytest.fixture
def key(tmp_path: Path) -> str:
    return key_file(tmp_path / "key", b"k")


def key_file(path: Path, letter: bytes) -> str:
    path.write_bytes(letter * 32 + b"\n")
    return str(path)


def free_port() -> int:
    with socket.create_server((HEAD, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def settings_of(key: str, port: int, **fields: Any) -> NodeSettings:
    values = {"master_addr": HEAD, "master_port": port, "node_key": key, "node_timeout": 1.0}
    return NodeSettings.from_config(config_of(**values | fields))


@contextmanager
def head_of(
    settings: NodeSettings, check: Callable[[Join], str] = lambda join: ""
) -> Iterator[NodePort]:
    """Its port is free again at the end: a listener's end waits for that of its sockets."""
    listener = TcpListener(settings.master_addr)
    port = NodePort(listener, settings, read_keys(settings.key_file), check)
    try:
        yield port
    finally:
        port.close()
        listener.close()


@contextmanager
def port_of(
    key: str, check: Callable[[Join], str] = lambda join: ""
) -> Iterator[tuple[NodePort, NodeSettings]]:
    settings = settings_of(key, free_port(), node_timeout=TIMEOUT_S)
    with head_of(settings, check) as port:
        yield port, settings


def node(settings: NodeSettings, key: str) -> Node:
    join = Join(node_rank=1, address="", version=__version__, settings={}, model="")
    return Node(settings, read_keys(key), join)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"node_rank": 2}, "--node-rank: got 2; expected 0 to 1 with --nnodes 2"),
        ({"node_rank": 1}, "--headless: got no --headless; expected it with --node-rank 1"),
        ({"headless": True}, "--headless: got --headless with --node-rank 0; expected"),
        ({"nnodes": 1, "node_rank": 1, "headless": True}, "--headless: got it with --nnodes 1"),
        ({"nnodes": 3}, "--nnodes: got 3 for 2 ranks"),
        ({"tensor_parallel_size": 1}, "--nnodes: got 2 for 1 ranks"),
        ({"data_parallel_size": 2}, "--nnodes: got 2 with --data-parallel-size 2"),
        ({"distributed_executor_backend": "ray"}, "backend ray; expected mp"),
        ({"launcher": "ray"}, "--launcher: got ray; expected local with --nnodes"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_nodes(config_of(**fields))
    assert text in str(raised.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"node_rank": 1},
        {"headless": True},
        {"master_addr": HEAD},
        {"master_port": 1},
        {"node_address": HEAD},
        {"node_key": "file"},
        {"node_timeout": 5.0},
    ],
)
def test_option_without_several_nodes_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"it has no effect without --(nnodes|headless)"):
        config_from_kwargs(fields, OPTIONS)


def test_ranks_are_shared_out_in_order() -> None:
    assert [node_of(rank, 4, 2) for rank in range(4)] == [0, 0, 1, 1]
    assert node_of(0, 1, 2) == 0
    assert ranks_per_node(config_of(pipeline_parallel_size=4)) == 4


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "--node-key: got nothing; expected a file"),
        (b"short", "--node-key: got 5 bytes in"),
        (b" " * 64, "--node-key: got 0 bytes in"),
    ],
)
def test_missing_or_short_secret_is_refused(
    content: bytes | None, text: str, tmp_path: Path
) -> None:
    path = None
    if content is not None:
        path = str(tmp_path / "key")
        Path(path).write_bytes(content)
    with pytest.raises(ConfigError, match=text):
        read_keys(path)
    with pytest.raises(ConfigError, match=r"--node-key .*absent cannot be read"):
        read_keys(str(tmp_path / "absent"))


def test_keys_depend_on_the_secret_only(tmp_path: Path) -> None:
    first = read_keys(key_file(tmp_path / "a", b"a"))
    assert first == read_keys(key_file(tmp_path / "b", b"a"))
    assert first.head != first.node
    assert first != read_keys(key_file(tmp_path / "c", b"c"))
    assert first.head.secret.decode() not in repr(first)


@pytest.mark.parametrize("fields", [{"master_addr": ABSENT}, {"master_addr": "0.0.0.0"}])
def test_head_refuses_an_address_that_it_does_not_have(fields: dict[str, Any], key: str) -> None:
    registry = load_plan(make_plan(["none"]))
    with pytest.raises(ConfigError, match=r"--master-addr: got .*; expected"):
        NodesLauncher(config_of(node_key=key, **fields), registry)


def test_node_refuses_an_address_that_it_does_not_have(key: str) -> None:
    config = config_of(node_rank=1, headless=True, node_key=key, node_address=ABSENT)
    with pytest.raises(ConfigError, match=f"--node-address: got {ABSENT}; expected an address"):
        run_node(config, load_plan(make_plan(["none"])), [])


def test_port_in_use_is_refused(key: str) -> None:
    listener = TcpListener(HEAD)
    try:
        with socket.create_server((HEAD, 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match=f"--master-port: got {port}; expected a free"):
                NodePort(listener, settings_of(key, port), read_keys(key), lambda join: "")
    finally:
        listener.close()


def test_missing_head_is_refused_by_name(key: str) -> None:
    settings = settings_of(key, free_port())
    with pytest.raises(ConfigError, match=rf"--master-addr: got {HEAD}; .*\(--node-timeout\)"):
        node(settings, key).run()


def test_other_secret_is_refused_by_name(key: str, tmp_path: Path) -> None:
    other = key_file(tmp_path / "other", b"x")
    with port_of(key) as (_, settings), pytest.raises(ConfigError, match="--node-key: got"):
        node(settings, other).run()


def test_node_that_does_not_fit_gets_the_reason(key: str) -> None:
    with (
        port_of(key, lambda join: f"--dtype: got it on node {join.node_rank}") as (_, settings),
        pytest.raises(ConfigError, match="--dtype: got it on node 1"),
    ):
        node(settings, key).run()


def test_first_setting_that_differs_is_named() -> None:
    head = config_of(dtype="float32", max_model_len=64)
    same = config_of(node_rank=1, headless=True, dtype="float32", node_key="x", log_level="error")
    names = ["dtype", "nnodes", "node_rank", "headless", "node_key", "log_level"]
    given = given_settings(same, names)
    assert given.keys() == {"model", "dtype", "nnodes"}
    assert difference(head, given, "node 1") == ""
    for name, value in (("dtype", "bfloat16"), ("model", "other"), ("max_model_len", 32)):
        other = given_settings(config_of(**{name: value}), [name])
        flag = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
        assert difference(head, other, "node 1").startswith(f"{flag}: got ")
    unknown = {"model": '"scripted:"', "unknown": "1"}
    assert "--unknown: got 1 on node 1; expected null" in difference(head, unknown, "node 1")
