"""Several tiers of one engine, and a folder shared by several engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builtin_plugins.features.kv_tiers.metrics import TierMetrics
from builtin_plugins.metric_sinks.api import with_label
from tests.builtin_plugins.kv_connectors.small_engines import (
    PROMPTS,
    open_llm,
    run,
    settle,
    tiers_of,
)

SMALL = 24 << 10
"""Bytes of a few blocks."""


def several(*connectors: dict[str, Any]) -> dict[str, Any]:
    return {"connectors": [*connectors]}


def one(name: str, **extra: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_connector_extra_config": extra}


def test_second_tier_serves_blocks_evicted_from_the_first(
    expected: list[list[int]], tmp_path: Path
) -> None:
    extra = several(one("offload", cpu_bytes_to_use=SMALL), one("disk", folder=str(tmp_path)))
    with open_llm("multi", extra) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
            settle(llm)
            assert llm.reset_prefix_cache()
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        memory, disk = tiers_of(llm)
        assert memory.status.counts.loaded > 0
        assert disk.status.counts.loaded > 0
        assert memory.status.counts.load_failures == disk.status.counts.load_failures == 0
        numbers = TierMetrics([memory, disk, disk]).numbers()
        for label, tier in (("offload", memory), ("disk", disk), ("disk 2", disk)):
            metric = with_label("kv_connector_loaded_blocks_total", "tier", label)
            assert numbers[metric] == tier.status.counts.loaded
        assert llm.reset_prefix_cache()
        before = memory.status.counts.loaded + disk.status.counts.loaded
        assert run(llm, PROMPTS[-1:])[1] == [64]
        # Blocks of both tiers are loaded once.
        assert memory.status.counts.loaded + disk.status.counts.loaded == before + 8


def test_failing_tier_does_not_affect_other_tiers(
    expected: list[list[int]], tmp_path: Path
) -> None:
    faulty = one("faulty", over="offload", fault="failing", settings={"cpu_bytes_to_use": 4 << 20})
    with open_llm("multi", several(faulty, one("disk", folder=str(tmp_path)))) as llm:
        for _ in range(3):
            assert run(llm)[0] == expected
            settle(llm)
            assert llm.reset_prefix_cache()
        first, second = tiers_of(llm)
        assert first.status.counts.load_failures > 0
        assert first.status.info()["state"] == "degraded"
        assert second.status.counts.loaded > 0
        assert second.status.info()["state"] == "ready"


def test_shared_storage_finds_blocks_just_written_by_another_engine(
    expected: list[list[int]], tmp_path: Path
) -> None:
    extra = {"shared_storage_path": str(tmp_path)}
    with open_llm("shared_storage", extra) as writer, open_llm("shared_storage", extra) as reader:
        assert run(reader, PROMPTS[:1])[1] == [0]
        assert run(writer)[0] == expected
        settle(writer)
        tokens, found = run(reader)
        assert (tokens, min(found)) == (expected, 64)
        for path in tmp_path.rglob("*-*"):
            if path.is_file():
                path.unlink()
        assert reader.reset_prefix_cache()
        assert run(reader)[0] == expected


def test_shared_storage_ignores_files_of_other_dtypes(tmp_path: Path) -> None:
    extra = {"shared_storage_path": str(tmp_path)}
    with open_llm("shared_storage", extra) as llm:
        run(llm)
        settle(llm)
    with open_llm(dtype="bfloat16") as llm:
        expected = run(llm)[0]
    with open_llm("shared_storage", extra, dtype="bfloat16") as llm:
        tokens, found = run(llm)
        assert (tokens, max(found)) == (expected, 0)
