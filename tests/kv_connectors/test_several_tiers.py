"""Tiers in a row, and a folder that several engines look into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builtin_plugins.kv_connectors.tiers import Tiers
from core.contracts.infos import labelled
from tests.kv_connectors.trial import PROMPTS, open_llm, run, settle, tiers_of

SMALL = 24 << 10
"""Bytes that hold a few blocks."""


def several(*connectors: dict[str, Any]) -> dict[str, Any]:
    return {"connectors": [*connectors]}


def one(name: str, **extra: Any) -> dict[str, Any]:
    return {"kv_connector": name, "kv_connector_extra_config": extra}


def test_what_the_first_tier_has_no_room_for_comes_from_the_second(
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
        assert memory.counts.loaded > 0
        assert disk.counts.loaded > 0
        assert memory.counts.unloaded == disk.counts.unloaded == 0
        shown = Tiers([memory, disk, disk]).numbers()
        for tier, half in (("offload", memory), ("disk", disk), ("disk 2", disk)):
            assert (
                shown[labelled("kv_connector_loaded_blocks_total", "tier", tier)]
                == half.counts.loaded
            )
        assert llm.reset_prefix_cache()
        before = memory.counts.loaded + disk.counts.loaded
        assert run(llm, PROMPTS[-1:])[1] == [64]
        # Blocks that both have are brought by one of them.
        assert memory.counts.loaded + disk.counts.loaded == before + 8


def test_a_tier_that_fails_leaves_the_tokens_right_and_the_others_at_work(
    expected: list[list[int]], tmp_path: Path
) -> None:
    faulty = one("faulty", over="offload", fault="failing", settings={"cpu_bytes_to_use": 4 << 20})
    with open_llm("multi", several(faulty, one("disk", folder=str(tmp_path)))) as llm:
        for _ in range(3):
            assert run(llm)[0] == expected
            settle(llm)
            assert llm.reset_prefix_cache()
        first, second = tiers_of(llm)
        assert first.counts.unloaded > 0
        assert first.info()["state"] == "degraded"
        assert second.counts.loaded > 0
        assert second.info()["state"] == "ready"


def test_engines_find_in_a_shared_folder_what_the_others_have_just_put_there(
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


def test_files_of_an_engine_that_is_set_up_otherwise_are_not_read(tmp_path: Path) -> None:
    extra = {"shared_storage_path": str(tmp_path)}
    with open_llm("shared_storage", extra) as llm:
        run(llm)
        settle(llm)
    with open_llm(dtype="bfloat16") as llm:
        want = run(llm)[0]
    with open_llm("shared_storage", extra, dtype="bfloat16") as llm:
        tokens, found = run(llm)
        assert (tokens, max(found)) == (want, 0)
