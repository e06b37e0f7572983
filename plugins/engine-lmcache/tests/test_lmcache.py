"""Blocks come back from LMCache as they went there, and whatever goes wrong with it, the tokens are
right.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from resp_server import serving

from core import LLM
from core.errors import EngineError
from core.testing import conformance
from core.testing.checkpoints import make_checkpoint
from core.testing.conformance import Case
from core.testing.kv_faults import FAULTS
from tests.kv_connectors.trial import (
    FAKE,
    PROMPTS,
    alone,
    check_under,
    flip,
    open_llm,
    run,
    settle,
    traffic,
)
from tests.patience import PATIENCE_S

PLUGIN = "engine_lmcache.plugin"
MEMORY_GB = 2**-6
pytestmark = pytest.mark.filterwarnings(
    "ignore:.LoggingHandler. in `opentelemetry-sdk`:DeprecationWarning"
)  # LMCache's


@pytest.fixture(scope="module")
def library() -> None:
    if find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed")


def over(folder: Path | None, **extra: Any) -> dict[str, Any]:
    behind = [] if folder is None else [{"type": "fs", "base_path": str(folder)}]
    return {"l1_size_gb": MEMORY_GB, "l2_adapters": behind, **extra}


def open_over(
    folder: Path | None, *, fault: str = "", transfer: dict[str, Any] | None = None, **extra: Any
) -> LLM:
    settings = over(folder, **extra)
    if fault:
        settings = {"over": "lmcache", "plugins": [PLUGIN], "fault": fault, "settings": settings}
    connector = "faulty" if fault else "LMCacheConnectorV1"
    return open_llm(connector, settings, transfer=transfer or {}, plugins=[*FAKE, PLUGIN])


def wait_for(there: Callable[[], Any], count: int) -> None:
    """Wait until LMCache has put so much where `there` looks."""
    end_s = time.monotonic() + PATIENCE_S
    while len(there()) < count:
        assert time.monotonic() < end_s, "blocks do not get there"
        time.sleep(0.02)


def wait_for_files(folder: Path, count: int) -> list[Path]:
    """Return the files, once LMCache has written so many."""
    wait_for(lambda: [*folder.rglob("*.data")], count)
    return sorted(folder.rglob("*.data"))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return alone()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", conformance.cases(PLUGIN) if find_spec("lmcache") else [], ids=str)
def test_it_holds_to_the_contract(case: Case) -> None:
    case()


@pytest.mark.usefixtures("library")
def test_blocks_come_back_from_memory(expected: list[list[int]]) -> None:
    with open_over(None) as llm:
        from lmcache.usage_telemetry.identity import (
            is_usage_tracking_enabled,
        )  # there is none before the skip

        assert not is_usage_tracking_enabled()
        assert run(llm)[0] == expected
        settle(llm)
        assert llm.reset_prefix_cache()
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        assert traffic(llm).counts.unloaded == traffic(llm).counts.unstored == 0


@pytest.mark.usefixtures("library")
def test_little_memory_is_kept_to_its_bytes(expected: list[list[int]]) -> None:
    with open_over(None, l1_size_gb=2**-14) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
            settle(llm)
        assert traffic(llm).counts.evicted > 0
        assert traffic(llm).counts.unstored == 0


@pytest.mark.usefixtures("library")
def test_blocks_survive_the_engine(expected: list[list[int]], tmp_path: Path) -> None:
    with open_over(tmp_path) as llm:
        assert run(llm)[0] == expected
        settle(llm)
        wait_for_files(tmp_path, traffic(llm).counts.stored)
    with open_over(tmp_path) as llm:
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        assert traffic(llm).counts.unloaded == 0


@pytest.mark.usefixtures("library")
def test_what_memory_has_no_room_for_comes_from_behind_it(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_over(tmp_path, l1_size_gb=2**-14) as llm:
        assert run(llm)[0] == expected
        settle(llm)
        wait_for_files(tmp_path, traffic(llm).counts.stored)
        assert llm.reset_prefix_cache()
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        assert traffic(llm).counts.unloaded == traffic(llm).counts.unstored == 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_what_another_engine_has_put_there_is_found_with_the_next_request(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with (
        open_over(tmp_path) as writer,
        open_over(tmp_path, transfer={"kv_role": "kv_consumer"}) as reader,
    ):
        assert run(reader, PROMPTS[:1])[1] == [0]
        run(writer)
        settle(writer)
        wait_for_files(tmp_path, traffic(writer).counts.stored)
        assert reader.reset_prefix_cache()
        tokens, found = run(reader)
        assert (tokens, min(found)) == (expected, 64)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_an_engine_that_is_set_up_otherwise_sees_none_of_it(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_over(tmp_path) as llm:
        run(llm)
        settle(llm)
        wait_for_files(tmp_path, traffic(llm).counts.stored)
    extra = over(tmp_path)
    with open_llm("lmcache", extra, plugins=[*FAKE, PLUGIN], dtype="bfloat16") as llm:
        assert run(llm)[1] == [0] * len(PROMPTS)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("split", [(2, 1), (1, 2)], ids=["tensor 2", "pipeline 2"])
def test_every_rank_keeps_its_own_part(split: tuple[int, int], tmp_path: Path) -> None:
    checkpoint = make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=1)
    prompts = [[(7 * i + 3 * j * j) % 290 for j in range(60)] for i in range(3)]
    given = {"kv_connector": "lmcache", "kv_connector_extra_config": over(tmp_path / "blocks")}
    tensor, pipeline = split
    seen = []
    for _ in range(2):
        with LLM(
            str(checkpoint), tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, kv_transfer_config=given,
            dtype="float32", max_model_len=96, kv_cache_memory_bytes=8 << 20, max_num_seqs=4, plugins=[PLUGIN],
        ) as llm:  # fmt: skip
            seen.append(run(llm, prompts))
            settle(llm)
            wait_for_files(tmp_path / "blocks", 2 * traffic(llm).counts.stored)
    (first, _), (second, found) = seen
    assert (first, min(found)) == (second, 48)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "hang" not in fault])
def test_tokens_are_right_whatever_the_fault(
    expected: list[list[int]], fault: str, tmp_path: Path
) -> None:
    with open_over(tmp_path, fault=fault) as llm:
        check_under(fault, llm, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(bytes(1 << 14)),
    ],
    ids=["flipped", "cut short", "another's"],
)
def test_damaged_objects_are_noticed_and_computed_again(
    expected: list[list[int]], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    with open_over(tmp_path) as llm:
        run(llm)
        settle(llm)
        files = wait_for_files(tmp_path, traffic(llm).counts.stored)
    for path in files:
        damage(path)
    with open_over(tmp_path) as llm:
        assert run(llm)[0] == expected
        assert traffic(llm).counts.unloaded > 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_objects_that_go_between_the_answer_and_the_reading_cost_a_recomputation(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_over(tmp_path, l1_size_gb=2**-14) as llm:
        run(llm)
        settle(llm)
        for path in wait_for_files(tmp_path, traffic(llm).counts.stored):
            path.unlink()
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert traffic(llm).counts.unloaded > 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_blocks_come_back_from_a_server_that_speaks_as_redis_does(
    expected: list[list[int]],
) -> None:
    with serving() as server:
        url = {"lmcache.remote_url": f"redis://127.0.0.1:{server.port}"}
        for least in (0, 64):
            with open_llm(
                "lmcache", {"l1_size_gb": MEMORY_GB, **url}, plugins=[*FAKE, PLUGIN]
            ) as llm:
                tokens, found = run(llm)
                assert tokens == expected
                assert min(found) >= least
                settle(llm)
                wait_for(lambda: server.values, traffic(llm).counts.stored)
                assert traffic(llm).counts.unloaded == 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("fault", ["lose", "refuse", "hang"])
def test_a_server_that_fails_costs_a_recomputation(expected: list[list[int]], fault: str) -> None:
    """Only what is to give up a server that hangs has a limit of its own."""
    with serving() as server:
        extra = {"l1_size_gb": MEMORY_GB, "lmcache.remote_url": f"redis://127.0.0.1:{server.port}"}
        with open_llm("lmcache", extra, plugins=[*FAKE, PLUGIN]) as llm:
            run(llm)
            settle(llm)
            wait_for(lambda: server.values, traffic(llm).counts.stored)
        limit = {"transfer": {"timeout_s": 1.0}} if fault == "hang" else {}
        with open_llm(
            "lmcache", {**extra, "request_timeout_s": 2.0}, plugins=[*FAKE, PLUGIN], **limit
        ) as llm:
            server.fault = fault
            tokens, found = run(llm)
            assert tokens == expected
            assert max(found) < 64
            assert fault != "hang" or traffic(llm).info()["state"] == "degraded"
            server.fault = ""
            server.released.set()
            assert llm.reset_prefix_cache()
            assert run(llm)[0] == expected


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("adapter", "named"),
    [
        ({"type": "nope"}, r"l2_adapters\[0\] .*nope"),
        ({"type": "fs"}, r"l2_adapters\[0\] .*base_path"),
        (
            {"type": "fs", "base_path": "/dev/null/folder"},
            r"LMCache cannot begin .*NotADirectoryError",
        ),
    ],
)
def test_what_lies_behind_and_cannot_be_used_stops_the_start(
    adapter: dict[str, Any], named: str
) -> None:
    with pytest.raises(EngineError, match=named):
        open_over(None, l2_adapters=[adapter])


@pytest.mark.usefixtures("library")
def test_memory_that_holds_no_two_blocks_stops_the_start() -> None:
    with pytest.raises(
        EngineError, match=r"l1_size_gb 4e-06 is 4294 bytes on each rank, and two blocks take 8192"
    ):
        open_over(None, l1_size_gb=4e-6)


def test_without_the_library_the_start_is_refused_by_its_name() -> None:
    if find_spec("lmcache") is not None:
        pytest.skip("lmcache is installed")
    with pytest.raises(EngineError, match=r"needs lmcache>=0\.5\.6,<0\.6, which is not installed"):
        open_over(None)
