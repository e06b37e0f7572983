"""Faults of a tier change no token, delay no request beyond the timeout, and are reported."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.features.kv_tiers.circuit_breaker import PROBATION_BLOCKS
from builtin_plugins.kv_connectors import disk
from builtin_plugins.kv_connectors.block_files import block_path
from builtin_plugins.kv_connectors.testing import FAULTS
from core.errors import EngineError
from core.testing import conformance
from core.testing.conformance import Case
from tests.builtin_plugins.kv_connectors.small_engines import (
    PARAMS,
    PROMPTS,
    only_tier,
    open_llm,
    run,
    settle,
)
from tests.timeouts import TIMEOUT_S

OVER: dict[str, Any] = {"offload": {"cpu_bytes_to_use": 4 << 20}, "disk": {"folder": ""}}


@pytest.mark.parametrize(
    "case", conformance.cases("builtin_plugins.kv_connectors.testing"), ids=str
)
def test_faulty_connector_passes_kv_connector_suite(case: Case) -> None:
    case()


def _cases(fault: str) -> Iterator[Any]:
    """Yield one fast case for each fault; the other combinations are slow."""
    for over in OVER:
        for is_async in (False, True):
            mark = () if (over, is_async) == ("offload", True) else pytest.mark.slow
            yield pytest.param(
                fault, over, is_async, marks=mark, id=f"{fault}, {over}, depth {1 + is_async}"
            )


@pytest.mark.parametrize(
    ("fault", "over", "is_async"),
    [case for fault in FAULTS if not fault.startswith("hanging") for case in _cases(fault)],
)
def test_faults_change_no_tokens(
    expected: list[list[int]], fault: str, over: str, is_async: bool, tmp_path: Path
) -> None:
    settings = OVER[over] | ({"folder": str(tmp_path)} if over == "disk" else {})
    with open_llm(
        "faulty", {"over": over, "fault": fault, "settings": settings}, async_scheduling=is_async
    ) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
            assert llm.reset_prefix_cache()
        counts = only_tier(llm).status.counts
        if fault in ("none", "slow"):
            assert counts.loaded > 0
            assert counts.load_failures == counts.store_failures == 0
            assert only_tier(llm).status.info()["state"] == "ready"
            before = only_tier(llm).status.numbers()["kv_connector_hit_tokens_total"]
            # The prefix cache itself is empty. A preempted request loads its blocks twice.
            cached = sum(run(llm)[1])
            after = only_tier(llm).status.numbers()["kv_connector_hit_tokens_total"]
            assert after - before >= cached > 0
        elif fault == "failing_writes":
            assert counts.store_failures > 0
            assert only_tier(llm).status.info()["state"] == "degraded"
        else:
            assert counts.load_failures > 0
            assert counts.loaded == 0
            assert only_tier(llm).status.info()["state"] == "degraded"
            assert only_tier(llm).status.numbers()["kv_connector_degraded"]


@pytest.mark.parametrize("fault", ["hanging", "hanging_writes"])
def test_hanging_store_is_bounded_by_timeout(expected: list[list[int]], fault: str) -> None:
    """Also if the hanging transfers pin all blocks, which so many prompts at once cause."""
    extra = {"over": "offload", "fault": fault, "settings": OVER["offload"]}
    with open_llm("faulty", extra, transfer={"timeout_s": 0.5}) as llm:
        run(llm)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        tier = only_tier(llm)
        end_s = time.monotonic() + TIMEOUT_S
        while tier._in_flight:
            assert time.monotonic() < end_s
            llm.core.step()
            time.sleep(0.01)
        assert tier.status.info() == {
            "connector": "faulty",
            "state": "degraded",
            "reason": "it takes longer than timeout_s",
        }
        assert not llm.core.scheduler._life.pinned  # timed-out transfers hold no blocks
        assert run(llm)[0] == expected


def test_load_failure_policy_fail_fails_the_request() -> None:
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
    """Put another block's file under this name."""
    other = next(each for each in sorted(path.parents[1].rglob("*-*")) if each.name != path.name)
    shutil.copyfile(other, path)


@pytest.mark.parametrize(
    "damage",
    [_truncate, _flip, _swap, Path.unlink],
    ids=["truncated", "flipped", "swapped", "deleted"],
)
def test_damaged_files_are_recomputed(
    expected: list[list[int]], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        run(llm)
        settle(llm)
        for path in sorted(tmp_path.rglob("*-*")):
            damage(path)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert only_tier(llm).status.counts.load_failures > 0


def test_damaged_file_is_reported_until_probation_ends(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        tier = only_tier(llm)
        run(llm, PROMPTS[:1])
        settle(llm)
        first = next(iter(tier._index.directory._policy))
        run(llm)
        settle(llm)
        for path in tmp_path.rglob(Path(block_path(first)).name):
            _flip(path)
        assert llm.reset_prefix_cache()
        assert run(llm, PROMPTS[:2])[0] == expected[:2]
        assert tier.status.counts.load_failures == 1
        assert tier.status.info() == {"connector": "disk", "state": "degraded", "reason": "Damaged"}
        settle(llm)
        before = tier.status.counts.loaded
        while tier.status.info()["state"] != "ready":
            assert llm.reset_prefix_cache()
            assert run(llm)[0] == expected
            settle(llm)
            assert tier.status.counts.loaded - before < 2 * PROBATION_BLOCKS, "it never ends"
        assert (tier.status.counts.load_failures, tier.status.info()["reason"]) == (1, "")


def test_leftovers_of_a_killed_engine_are_deleted(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        run(llm)
    complete = sorted(tmp_path.rglob("*-*"))
    _truncate(complete[0])
    partial = complete[1].with_name(f"{complete[1].name}.1.1.part")
    partial.write_bytes(b"half")
    os.utime(partial, (time.time() - 7200,) * 2)
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        assert run(llm)[0] == expected
    assert not partial.exists()
    assert len({path.stat().st_size for path in tmp_path.rglob("*-*")}) == 1


WRITER = """
import json, sys
sys.path[:0] = json.loads(sys.argv[2])
from tests.builtin_plugins.kv_connectors.small_engines import open_llm, run
with open_llm("disk", {"folder": sys.argv[1]}, transfer={"max_bytes_per_step": 1}) as llm:
    print("writing", flush=True)
    while True:
        run(llm, [[2 + (i * 5 + j * j + i // 12 * j) % 60 for j in range(70)] for i in range(600)])
"""


@pytest.mark.slow
def test_killed_writer_leaves_no_corrupt_block(expected: list[list[int]], tmp_path: Path) -> None:
    paths = json.dumps([str(Path(__file__).parents[3]), *filter(None, sys.path)])
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), paths], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        before = len([*tmp_path.rglob("*-*")])
        assert process.stdout.readline()
        end_s = time.monotonic() + TIMEOUT_S
        while len([*tmp_path.rglob("*-*")]) < before + 3:
            assert time.monotonic() < end_s
        process.kill()
        process.wait()
        process.stdout.close()
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        assert run(llm)[0] == expected
        assert only_tier(llm).status.counts.load_failures == 0


def test_deleted_folder_is_refilled(expected: list[list[int]], tmp_path: Path) -> None:
    with open_llm("disk", {"folder": str(tmp_path / "blocks")}) as llm:
        run(llm)
        settle(llm)
        (tmp_path / "blocks").rename(tmp_path / "gone")
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert only_tier(llm).status.info()["state"] == "degraded"
        settle(llm)
        assert llm.reset_prefix_cache()
        # Missing files do not open the circuit breaker, so the new ones are found.
        assert run(llm) == (expected, [64] * len(expected))
        assert only_tier(llm).status.info()["state"] == "ready"


def test_read_only_folder_is_still_read(
    expected: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        run(llm)
        settle(llm)
        assert llm.reset_prefix_cache()
        for name in ("utime", "replace", "unlink", "pwritev"):
            monkeypatch.setattr(disk.os, name, refuse)
        assert run(llm) == (expected, [64] * len(expected))
        new_prompts = [[2 + (i * 3 + j * j * j) % 60 for j in range(70)] for i in range(8)]
        tokens = run(llm, new_prompts)[0]
        assert only_tier(llm).status.info()["state"] == "degraded"
        assert llm.reset_prefix_cache()
        assert run(llm, new_prompts)[0] == tokens
    assert sum("cannot drop blocks" in record.message for record in caplog.records) <= 1
    assert not any(record.exc_info for record in caplog.records)


def test_engines_sharing_a_disk_folder_use_each_others_blocks(
    expected: list[list[int]], tmp_path: Path
) -> None:
    extra = {"folder": str(tmp_path), "max_bytes": 200 << 10}
    with open_llm("disk", extra) as one, open_llm("disk", extra) as other:
        run(one, PROMPTS[:1])
        for _ in range(2):
            for llm in (one, other):
                assert run(llm)[0] == expected
                assert llm.reset_prefix_cache()
    with open_llm("disk", extra) as third:
        assert min(run(third)[1]) == 64


def test_unwritable_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(EngineError, match=r"folder .*cannot be written to"):
        open_llm("disk", {"folder": str(tmp_path / "file" / "blocks")})
