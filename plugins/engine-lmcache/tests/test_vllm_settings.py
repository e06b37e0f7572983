"""vLLM's LMCache keys are converted, or rejected by name. Runs without LMCache."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_lmcache.connector import LMCache
from engine_lmcache.vllm_settings import convert_settings

from builtin_plugins.kv_connectors.api import KVTransferConfig
from core.api import ConfigError, EngineConfig
from core.config.sections import ParallelConfig

FOLDER = {"type": "fs", "base_path": "/folder"}


def make_connector(extra: dict[str, Any], *, ranks: int = 1) -> LMCache:
    config = replace(EngineConfig(), parallel=ParallelConfig(tensor_parallel_size=ranks))
    return LMCache(config, KVTransferConfig("lmcache", kv_connector_extra_config=extra))


def test_vllm_sizes_are_per_rank() -> None:
    given = {
        "lmcache.local_cpu": True,
        "lmcache.max_local_cpu_size": 3,
        "lmcache.local_disk": "file:///folder",
        "lmcache.max_local_disk_size": 0.5,
        "eviction_policy": "arc",
    }
    own = {
        "l1_size_gb": 6.0,
        "max_bytes": 1 << 30,
        "l2_adapters": [FOLDER],
        "eviction_policy": "arc",
    }
    assert convert_settings(given, 2) == own
    assert make_connector(given, ranks=2).host_bytes(None, EngineConfig()) == 3 << 30
    assert make_connector({"l1_size_gb": 6.0}, ranks=2).host_bytes(None, EngineConfig()) == 3 << 30


def test_remote_url_becomes_an_adapter() -> None:
    given = {"lmcache.remote_url": "redis://me:it@host:1234", "lmcache.local_disk": None}
    (adapter,) = convert_settings(given, 1)["l2_adapters"]
    assert adapter == {
        "type": "resp",
        "host": "host",
        "port": 1234,
        "username": "me",
        "password": "it",
    }
    assert convert_settings({"lmcache.remote_url": None}, 1) == {}


def test_l2_adapters_enable_lookup() -> None:
    assert make_connector({"l2_adapters": [FOLDER]}).supports_lookup
    assert not make_connector({}).supports_lookup


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"lmcache.local_cpu": False}, "'lmcache.local_cpu': got False; expected True"),
        ({"lmcache.max_local_cpu_size": 0}, "'lmcache.max_local_cpu_size': got 0; expected GiB"),
        ({"lmcache.max_local_cpu_size": 3, "l1_size_gb": 3}, "'l1_size_gb' sets the same value"),
        ({"lmcache.max_local_disk_size": 3}, "no effect without 'lmcache.local_disk'"),
        ({"lmcache.local_disk": 3}, "'lmcache.local_disk': got 3; expected a folder"),
        ({"lmcache.local_disk": "x", "l2_adapters": [FOLDER]}, "'l2_adapters' sets the same value"),
        ({"lmcache.remote_url": "lm://host:1"}, "got the scheme 'lm'; expected redis://host:port"),
        ({"lmcache.remote_url": "redis://host:x"}, "'lmcache.remote_url': got an invalid URL"),
        ({"lmcache.remote_url": 3}, "expected redis://host:port"),
        ({"lmcache.remote_serde": "cachegen"}, "got 'cachegen'; expected 'naive'"),
        (
            {"lmcache.chunk_size": 256},
            "'lmcache.chunk_size': it is not supported; supported are 'lmcache.local_cpu'",
        ),
        ({"l1_size_gb": 0}, "l1_size_gb: got 0"),
        ({"l1_size_gb": 1e-9}, "l1_size_gb: got 1e-09; expected GiB"),
        ({"max_bytes": 0}, "max_bytes: got 0; expected more than 0"),
        ({"request_timeout_s": -1}, "request_timeout_s: got -1"),
        ({"l2_adapter": []}, "l2_adapters"),
        ({"l2_adapters": [{"base_path": "x"}]}, "l2_adapters[0] needs an adapter type"),
        ({"l2_adapters": [FOLDER, {**FOLDER, "serde": {"type": "fp8"}}]}, "l2_adapters[1].serde"),
    ],
)
def test_unsupported_lmcache_keys_are_rejected(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_connector(extra)
    assert named in str(refused.value)
