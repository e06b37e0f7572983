"""Whatever goes wrong behind the cache, the tokens are right, nobody waits for longer than the timeout, and it is told."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import EngineError
from core.testing import conformance
from core.testing.conformance import Case
from core.testing.kv_faults import FAULTS
from tests.kv_connectors.trial import PARAMS, PROMPTS, open_llm, run, settle, traffic

OVER: dict[str, Any] = {"offload": {"cpu_bytes_to_use": 4 << 20}, "disk": {"folder": ""}}


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    with open_llm() as llm:
        return run(llm)[0]


@pytest.mark.parametrize("case", conformance.cases("core.testing.kv_faults"), ids=str)
def test_a_connector_over_another_holds_to_the_contract(case: Case) -> None:
    case()


@pytest.mark.parametrize("ahead", [False, True], ids=["depth 1", "depth 2"])
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "hanging"])
def test_tokens_are_right_whatever_the_fault(
    expected: list[list[int]], fault: str, over: str, ahead: bool, tmp_path: Path
) -> None:
    settings = OVER[over] | ({"folder": str(tmp_path)} if over == "disk" else {})
    with open_llm("faulty", {"over": over, "fault": fault, "settings": settings}, async_scheduling=ahead) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
            assert llm.reset_prefix_cache()
        counts = traffic(llm).counts
        if fault in ("none", "slow"):
            assert counts.loaded > 0
            assert counts.unloaded == counts.unstored == 0
            assert traffic(llm).info()["state"] == "ready"
            before = traffic(llm).numbers()["kv_connector_hit_tokens_total"]
            brought = sum(run(llm)[1])  # nothing was left in the cache itself; who was preempted is brought them twice
            assert traffic(llm).numbers()["kv_connector_hit_tokens_total"] - before >= brought > 0
        elif fault == "failing_writes":
            assert counts.unstored > 0
            assert traffic(llm).info()["state"] == "degraded"
        else:
            assert counts.unloaded > 0
            assert counts.loaded == 0
            assert traffic(llm).info()["state"] == "degraded"
            assert traffic(llm).numbers()["kv_connector_degraded"]


def test_nobody_waits_for_longer_than_the_timeout(expected: list[list[int]]) -> None:
    extra = {"over": "offload", "fault": "hanging", "settings": OVER["offload"]}
    with open_llm("faulty", extra, transfer={"timeout_s": 0.5}) as llm:
        run(llm)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert traffic(llm).info() == {
            "connector": "faulty",
            "state": "degraded",
            "reason": "it takes longer than timeout_s",
        }
        assert llm.core.scheduler._life.kept  # somebody may still write to these blocks


def test_a_request_fails_by_name_where_that_is_wanted() -> None:
    extra = {"over": "offload", "fault": "failing", "settings": OVER["offload"]}
    with open_llm("faulty", extra, transfer={"kv_load_failure_policy": "fail"}) as llm:
        run(llm)
        assert llm.reset_prefix_cache()
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert "error" in [o.outputs[0].finish_reason for o in outputs]


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


def _swap(path: Path) -> None:
    """Another block's file under this one's name."""
    other = next(each for each in sorted(path.parents[1].rglob("*-*")) if each.name != path.name)
    shutil.copyfile(other, path)


@pytest.mark.parametrize(
    "damage", [_truncate, _flip, _swap, Path.unlink], ids=["cut short", "flipped", "swapped", "gone"]
)
def test_damaged_files_are_noticed_and_computed_again(
    expected: list[list[int]], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        run(llm)
        settle(llm)
        for path in sorted(tmp_path.rglob("*-*")):
            damage(path)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert traffic(llm).counts.unloaded > 0


def test_what_a_killed_engine_left_is_no_block_and_is_removed(expected: list[list[int]], tmp_path: Path) -> None:
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        run(llm)
    whole = sorted(tmp_path.rglob("*-*"))
    _truncate(whole[0])
    left = whole[1].with_name(f"{whole[1].name}.1.1.part")
    left.write_bytes(b"half")
    os.utime(left, (time.time() - 7200,) * 2)
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        assert run(llm)[0] == expected
    assert not left.exists()
    assert len({path.stat().st_size for path in tmp_path.rglob("*-*")}) == 1


def test_a_folder_that_is_deleted_costs_what_was_in_it(expected: list[list[int]], tmp_path: Path) -> None:
    with open_llm("disk", {"folder": str(tmp_path / "blocks")}) as llm:
        run(llm)
        settle(llm)
        (tmp_path / "blocks").rename(tmp_path / "gone")
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert traffic(llm).info()["state"] == "degraded"


def test_two_engines_on_one_folder_use_each_others_blocks(expected: list[list[int]], tmp_path: Path) -> None:
    extra = {"folder": str(tmp_path), "max_bytes": 200 << 10}
    with open_llm("disk", extra) as one, open_llm("disk", extra) as other:
        run(one, PROMPTS[:1])
        for _ in range(2):
            for llm in (one, other):
                assert run(llm)[0] == expected
                assert llm.reset_prefix_cache()
    with open_llm("disk", extra) as third:
        assert min(run(third)[1]) == 64


def test_a_folder_that_cannot_be_written_to_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(EngineError, match=r"folder .*cannot be written to"):
        open_llm("disk", {"folder": str(tmp_path / "file" / "blocks")})
