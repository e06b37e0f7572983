"""Tier settings in vLLM's spelling; unsupported values are rejected by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builtin_plugins.features.kv_tiers.settings import tiers_of
from builtin_plugins.kv_connectors.api import KVTransferConfig
from builtin_plugins.kv_connectors.disk import Disk
from builtin_plugins.kv_connectors.offload import Offload
from builtin_plugins.kv_connectors.shared_storage import SharedStorage
from core.api import ConfigError, EngineConfig
from core.config.sections import CacheConfig
from core.errors import EngineError
from tests.builtin_plugins.kv_connectors.small_engines import only_tier, open_llm


def config(**options: Any) -> EngineConfig:
    return replace(EngineConfig(), options=options)


def test_vllm_names_and_sizes_are_accepted() -> None:
    assert tiers_of(config()) == []
    [offload] = tiers_of(config(kv_offloading_size=0.5, kv_offloading_backend="native"))
    assert offload == KVTransferConfig(
        "offload", kv_connector_extra_config={"cpu_bytes_to_use": 1 << 29}
    )
    [lmcache] = tiers_of(config(kv_offloading_size=0.5, kv_offloading_backend="lmcache"))
    assert lmcache == KVTransferConfig("lmcache", kv_connector_extra_config={"l1_size_gb": 0.5})
    assert tiers_of(config(kv_offloading_backend="lmcache")) == []
    given = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_buffer_device": "cpu",
        "kv_rank": None,
        "kv_ip": "127.0.0.1",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 20},
        "timeout_s": 5,
    }
    [read] = tiers_of(config(kv_transfer_config=given))
    assert (read.kv_connector, read.timeout_s, read.kv_role) == ("offload", 5.0, "kv_both")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("NixlConnector", "pip install plugins/engine-nixl"),
        ("MooncakeConnector", "pip install plugins/engine-mooncake"),
        ("object_store", "pip install plugins/engine-object-store"),
        ("LMCacheConnectorV1", "lmcache.*pip install plugins/engine-lmcache"),
    ],
)
def test_missing_connector_names_its_distribution(name: str, hint: str) -> None:
    with pytest.raises(EngineError, match=hint):
        open_llm(name)


def test_offloading_backend_lmcache_names_its_distribution() -> None:
    with pytest.raises(EngineError, match=r"lmcache.*pip install plugins/engine-lmcache"):
        open_llm(kv_offloading_size=0.5, kv_offloading_backend="lmcache")


def several(*connectors: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": "multi", "kv_connector_extra_config": {"connectors": [*connectors]}}


def test_multi_expands_to_tiers_in_order() -> None:
    disk = {
        "kv_connector": "disk",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"folder": "x"},
    }
    shared = {"kv_connector": "SharedStorageConnector", "timeout_s": 7}
    given = {
        **several(disk, shared),
        "kv_connector": "MultiConnector",
        "timeout_s": 5,
        "kv_role": "kv_consumer",
    }
    first, second, third = tiers_of(config(kv_offloading_size=1.0, kv_transfer_config=given))
    assert (first.kv_connector, first.kv_role, first.timeout_s) == ("offload", "kv_both", 30.0)
    assert (second.kv_connector, second.kv_role, second.timeout_s) == ("disk", "kv_producer", 5.0)
    assert (third.kv_connector, third.kv_role, third.timeout_s) == (
        "shared_storage",
        "kv_consumer",
        7.0,
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kv_offloading_size": 0.0}, "--kv-offloading-size 0.0"),
        ({"kv_offloading_size": float("nan")}, "--kv-offloading-size nan"),
        (
            {"kv_transfer_config": {"kv_connector": "LMCacheMPConnector"}},
            "LMCacheMPConnector: it needs an LMCache server",
        ),
        ({"kv_transfer_config": {"kv_role": "kv_both"}}, "name of a connector"),
        ({"kv_transfer_config": {"kv_connector": "disk", "kv_rol": "kv_both"}}, "kv_role"),
        ({"kv_transfer_config": {"kv_connector": "disk", "kv_role": "both"}}, "kv_producer"),
        (
            {"kv_transfer_config": {"kv_connector": "disk", "kv_parallel_size": 2}},
            "kv_parallel_size",
        ),
        ({"kv_transfer_config": {"kv_connector": "disk", "timeout_s": 0}}, "timeout_s"),
        (
            {"kv_transfer_config": {"kv_connector": "disk", "max_inflight_bytes": 0}},
            "max_inflight_bytes",
        ),
        *(
            ({"kv_transfer_config": {"kv_connector": name, key: value}}, key)
            for name in ("offload", "disk", "shared_storage")
            for key, value in (
                ("engine_id", "one"),
                ("kv_buffer_size", 1e6),
                ("kv_ip", "10.0.0.1"),
                ("kv_port", 14000),
                ("kv_buffer_device", "cuda"),
                ("kv_rank", 1),
                ("enable_permute_local_kv", True),
            )
        ),
        (
            {"kv_transfer_config": {"kv_connector": "disk", "max_bytes_per_step": True}},
            "max_bytes_per_step",
        ),
        ({"kv_transfer_config": {"kv_connector": 3}}, "kv_connector: expected `str`"),
        ({"kv_transfer_config": {"kv_connector": ["disk"]}}, "kv_connector: expected `str`"),
        (
            {"kv_transfer_config": {"kv_connector": "disk", "kv_connector_extra_config": 7}},
            "kv_connector_extra_config",
        ),
        ({"kv_transfer_config": {"kv_connector": "multi"}}, "needs 'connectors'"),
        ({"kv_transfer_config": several()}, "connectors is empty"),
        (
            {"kv_transfer_config": several({"kv_connector": "multi", **several()})},
            "got multi inside multi",
        ),
        ({"kv_transfer_config": several({"kv_rol": "kv_both"})}, "kv_role"),
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        tiers_of(config(**options))
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("connector", "extra", "named"),
    [
        (Offload, {}, "needs 'cpu_bytes_to_use'"),
        (Offload, {"cpu_bytes_to_use": 1}, "cpu_bytes_to_use: got 1; expected"),
        (Offload, {"cpu_bytes_to_use": 1 << 20, "num_cpu_blocks": 8}, "expected one of them"),
        (Offload, {"num_cpu_blocks": -8}, "num_cpu_blocks: got -8; expected"),
        (Offload, {"num_cpu_blocks": 8, "block_size": -1}, "block_size: got -1; expected"),
        (Offload, {"num_cpu_blocks": 8, "spec_name": "MySpec"}, "CPUOffloadingSpec"),
        (Offload, {"cpu_bytes_to_use": 1 << 20, "eviction_policy": "fifo"}, "lru, arc"),
        (Disk, {"fodler": "x"}, "folder"),
        (Disk, {"folder": "x", "max_bytes": 0}, "max_bytes"),
        (SharedStorage, {}, "needs 'shared_storage_path'"),
        (SharedStorage, {"shared_storage_path": "x", "max_bytes": 0}, "max_bytes"),
    ],
)
def test_invalid_connector_settings_are_rejected(
    connector: Any, extra: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        connector(EngineConfig(), KVTransferConfig("x", kv_connector_extra_config=extra))
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("extra", "num_blocks"),
    [
        ({"num_cpu_blocks": 10}, 10),
        ({"num_cpu_blocks": 10, "block_size": 64}, 80),
        ({"num_cpu_blocks": 9, "block_size": 9}, 18),
    ],
)
def test_num_cpu_blocks_sets_the_capacity(extra: dict[str, Any], num_blocks: int) -> None:
    """A block covers all layers, and is rounded up to device blocks of 8 tokens."""
    with open_llm("OffloadingConnector", {**extra, "spec_name": "CPUOffloadingSpec"}) as llm:
        (pool,) = llm.core.scheduler.kv.layout.pools
        capacity_bytes = num_blocks * pool.block_bytes
        assert only_tier(llm)._index.directory.capacity_bytes == capacity_bytes
        model = llm.core.executor.worker.model
        config = replace(EngineConfig(), cache=CacheConfig(block_size=8))
        settings = KVTransferConfig("offload", kv_connector_extra_config=extra)
        assert Offload(config, settings).host_bytes(model, config) == capacity_bytes


def test_unknown_connector_lists_the_known_ones() -> None:
    with pytest.raises(EngineError, match=r"SomeConnector.*disk"):
        open_llm("SomeConnector")


def test_tiers_need_prefix_caching() -> None:
    without = config(kv_offloading_size=1.0)
    without = replace(without, cache=replace(without.cache, enable_prefix_caching=False))
    with pytest.raises(ConfigError, match="prefix caching"):
        tiers_of(without)
