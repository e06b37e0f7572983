"""Whatever goes wrong behind the cache, the tokens are right, nobody waits for longer than the
timeout, and it is told.
"""

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

from builtin_plugins.kv_connectors import disk
from builtin_plugins.kv_connectors.names import path_of
from builtin_plugins.kv_connectors.trouble import WATCHED
from core.errors import EngineError
from core.testing import conformance
from core.testing.conformance import Case
from core.testing.kv_faults import FAULTS
from tests.kv_connectors.trial import PARAMS, PROMPTS, open_llm, run, settle, traffic
from tests.patience import PATIENCE_S

OVER: dict[str, Any] = {"offload": {"cpu_bytes_to_use": 4 << 20}, "disk": {"folder": ""}}


@pytest.mark.parametrize("case", conformance.cases("core.testing.kv_faults"), ids=str)
def test_a_connector_over_another_holds_to_the_contract(case: Case) -> None:
    case()


def _ways(fault: str) -> Iterator[Any]:
    """Each fault is tried over one connector in one way; what lies under it and how steps follow
    bears on few of them.
    """
    for over in OVER:
        for ahead in (False, True):
            mark = () if (over, ahead) == ("offload", True) else pytest.mark.slow
            yield pytest.param(
                fault, over, ahead, marks=mark, id=f"{fault}, {over}, depth {1 + ahead}"
            )


@pytest.mark.parametrize(
    ("fault", "over", "ahead"),
    [way for fault in FAULTS if not fault.startswith("hanging") for way in _ways(fault)],
)
def test_tokens_are_right_whatever_the_fault(
    expected: list[list[int]], fault: str, over: str, ahead: bool, tmp_path: Path
) -> None:
    settings = OVER[over] | ({"folder": str(tmp_path)} if over == "disk" else {})
    with open_llm(
        "faulty", {"over": over, "fault": fault, "settings": settings}, async_scheduling=ahead
    ) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
            assert llm.reset_prefix_cache()
        counts = traffic(llm).counts
        if fault in ("none", "slow"):
            assert counts.loaded > 0
            assert counts.unloaded == counts.unstored == 0
            assert traffic(llm).info()["state"] == "ready"
            before = traffic(llm).numbers()["kv_connector_hit_tokens_total"]
            brought = sum(
                run(llm)[1]
            )  # nothing was left in the cache itself; who was preempted is brought them twice
            assert traffic(llm).numbers()["kv_connector_hit_tokens_total"] - before >= brought > 0
        elif fault == "failing_writes":
            assert counts.unstored > 0
            assert traffic(llm).info()["state"] == "degraded"
        else:
            assert counts.unloaded > 0
            assert counts.loaded == 0
            assert traffic(llm).info()["state"] == "degraded"
            assert traffic(llm).numbers()["kv_connector_degraded"]


@pytest.mark.parametrize("fault", ["hanging", "hanging_writes"])
def test_nobody_waits_for_longer_than_the_timeout(expected: list[list[int]], fault: str) -> None:
    """Even where all blocks were given to what hangs: so many prompts at once leave too few of them
    for anybody.
    """
    extra = {"over": "offload", "fault": fault, "settings": OVER["offload"]}
    with open_llm("faulty", extra, transfer={"timeout_s": 0.5}) as llm:
        run(llm)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        half = traffic(llm)
        end_s = time.monotonic() + PATIENCE_S
        while half._moves:
            assert time.monotonic() < end_s
            llm.core.step()
            time.sleep(0.01)
        assert half.info() == {
            "connector": "faulty",
            "state": "degraded",
            "reason": "it takes longer than timeout_s",
        }
        assert not llm.core.scheduler._life.kept  # who hangs has given its blocks up
        assert run(llm)[0] == expected


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
    "damage",
    [_truncate, _flip, _swap, Path.unlink],
    ids=["cut short", "flipped", "swapped", "gone"],
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


def test_one_damaged_file_is_told_until_many_came_back_right(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        half = traffic(llm)
        run(llm, PROMPTS[:1])
        settle(llm)
        first = next(iter(half._holdings.directory._order))
        run(llm)
        settle(llm)
        for path in tmp_path.rglob(Path(path_of(first)).name):
            _flip(path)
        assert llm.reset_prefix_cache()
        assert run(llm, PROMPTS[:2])[0] == expected[:2]
        assert half.counts.unloaded == 1
        assert half.info() == {"connector": "disk", "state": "degraded", "reason": "Damaged"}
        settle(llm)
        before = half.counts.loaded
        while half.info()["state"] != "ready":
            assert llm.reset_prefix_cache()
            assert run(llm)[0] == expected
            settle(llm)
            assert half.counts.loaded - before < 2 * WATCHED, "it is told for ever"
        assert (half.counts.unloaded, half.info()["reason"]) == (1, "")


def test_what_a_killed_engine_left_is_no_block_and_is_removed(
    expected: list[list[int]], tmp_path: Path
) -> None:
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


WRITER = """
import json, sys
sys.path[:0] = json.loads(sys.argv[2])
from tests.kv_connectors.trial import open_llm, run
with open_llm("disk", {"folder": sys.argv[1]}, transfer={"step_bytes": 1}) as llm:
    print("writing", flush=True)
    while True:
        run(llm, [[2 + (i * 5 + j * j + i // 12 * j) % 60 for j in range(70)] for i in range(600)])
"""


@pytest.mark.slow
def test_an_engine_that_is_killed_while_it_writes_leaves_no_block_that_is_wrong(
    expected: list[list[int]], tmp_path: Path
) -> None:
    paths = json.dumps([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), paths], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        before = len([*tmp_path.rglob("*-*")])
        assert process.stdout.readline()
        end_s = time.monotonic() + PATIENCE_S
        while len([*tmp_path.rglob("*-*")]) < before + 3:
            assert time.monotonic() < end_s
        process.kill()
        process.wait()
        process.stdout.close()
    with open_llm("disk", {"folder": str(tmp_path)}) as llm:
        assert run(llm)[0] == expected
        assert traffic(llm).counts.unloaded == 0


def test_a_folder_that_is_deleted_costs_what_was_in_it(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_llm("disk", {"folder": str(tmp_path / "blocks")}) as llm:
        run(llm)
        settle(llm)
        (tmp_path / "blocks").rename(tmp_path / "gone")
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert traffic(llm).info()["state"] == "degraded"
        settle(llm)
        assert llm.reset_prefix_cache()
        assert run(llm) == (
            expected,
            [64] * len(expected),
        )  # it was not left alone: what was written anew is there
        assert traffic(llm).info()["state"] == "ready"


def test_a_folder_that_becomes_read_only_is_read_and_nothing_more(
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
        strangers = [[2 + (i * 3 + j * j * j) % 60 for j in range(70)] for i in range(8)]
        wanted = run(llm, strangers)[0]
        assert traffic(llm).info()["state"] == "degraded"
        assert llm.reset_prefix_cache()
        assert run(llm, strangers)[0] == wanted
    assert sum("cannot drop blocks" in record.message for record in caplog.records) <= 1
    assert not any(record.exc_info for record in caplog.records)


def test_two_engines_on_one_folder_use_each_others_blocks(
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


def test_a_folder_that_cannot_be_written_to_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(EngineError, match=r"folder .*cannot be written to"):
        open_llm("disk", {"folder": str(tmp_path / "file" / "blocks")})
