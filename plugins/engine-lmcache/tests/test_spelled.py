"""Keys of vLLM's users for LMCache mean what they mean there, or are refused by name.

Needs no LMCache.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_lmcache.connector import LMCache
from engine_lmcache.spelled import own_words

from core.api import ConfigError, EngineConfig, KVTransferConfig
from core.config.sections import ParallelConfig

FOLDER = {"type": "fs", "base_path": "/folder"}


def made(extra: dict[str, Any], *, ranks: int = 1) -> LMCache:
    config = replace(EngineConfig(), parallel=ParallelConfig(tensor_parallel_size=ranks))
    return LMCache(config, KVTransferConfig("lmcache", kv_connector_extra_config=extra))


def test_sizes_are_of_each_rank_there_and_of_all_here() -> None:
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
    assert own_words(given, 2) == own
    assert made(given, ranks=2).host_bytes(None, EngineConfig()) == 3 << 30
    assert made({"l1_size_gb": 6.0}, ranks=2).host_bytes(None, EngineConfig()) == 3 << 30


def test_a_server_is_an_adapter() -> None:
    given = {"lmcache.remote_url": "redis://me:it@host:1234", "lmcache.local_disk": None}
    (adapter,) = own_words(given, 1)["l2_adapters"]
    assert adapter == {
        "type": "resp",
        "host": "host",
        "port": 1234,
        "username": "me",
        "password": "it",
    }
    assert own_words({"lmcache.remote_url": None}, 1) == {}


def test_stores_are_asked_where_others_can_write() -> None:
    assert made({"l2_adapters": [FOLDER]}).looks
    assert not made({}).looks


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"lmcache.local_cpu": False}, "'lmcache.local_cpu' must be True"),
        ({"lmcache.max_local_cpu_size": 0}, "'lmcache.max_local_cpu_size' must be GiB"),
        ({"lmcache.max_local_cpu_size": 3, "l1_size_gb": 3}, "and 'l1_size_gb' say the same"),
        ({"lmcache.max_local_disk_size": 3}, "bounds nothing without 'lmcache.local_disk'"),
        ({"lmcache.local_disk": 3}, "'lmcache.local_disk' must be a folder"),
        ({"lmcache.local_disk": "x", "l2_adapters": [FOLDER]}, "'l2_adapters' say the same"),
        ({"lmcache.remote_url": "lm://host:1"}, "must be redis://host:port, not 'lm'; describe"),
        ({"lmcache.remote_url": "redis://host:x"}, "'lmcache.remote_url' is no URL"),
        ({"lmcache.remote_url": 3}, "must be redis://host:port"),
        ({"lmcache.remote_serde": "cachegen"}, "'lmcache.remote_serde' must be 'naive'"),
        (
            {"lmcache.chunk_size": 256},
            "'lmcache.chunk_size' is not served; of LMCache's own keys 'lmcache.local_cpu'",
        ),
        ({"l1_size_gb": 0}, "l1_size_gb must be more than 0"),
        ({"l1_size_gb": 1e-9}, "l1_size_gb 1e-09 holds no block"),
        ({"max_bytes": 0}, "max_bytes must be more than 0"),
        ({"request_timeout_s": -1}, "request_timeout_s must be more than 0"),
        ({"l2_adapter": []}, "l2_adapters"),
        ({"l2_adapters": [{"base_path": "x"}]}, "l2_adapters[0] needs the type"),
        ({"l2_adapters": [FOLDER, {**FOLDER, "serde": {"type": "fp8"}}]}, "l2_adapters[1].serde"),
    ],
)
def test_what_has_no_meaning_here_is_refused_by_name(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        made(extra)
    assert named in str(refused.value)
