"""Connector `lmcache`: blocks round-trip, and faults change no tokens."""

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

from builtin_plugins.kv_connectors.testing import FAULTS
from core import LLM
from core.errors import EngineError
from core.testing import conformance
from core.testing.checkpoints import make_checkpoint
from core.testing.conformance import Case
from tests.builtin_plugins.kv_connectors.small_engines import (
    FAKE,
    PROMPTS,
    check_under,
    flip,
    only_tier,
    open_llm,
    reference_tokens,
    run,
    settle,
)
from tests.timeouts import TIMEOUT_S

PLUGIN = "engine_lmcache.plugin"
MEMORY_GB = 2**-6
pytestmark = pytest.mark.filterwarnings(
    "ignore:.LoggingHandler. in `opentelemetry-sdk`:DeprecationWarning"
)  # raised by LMCache


@pytest.fixture(scope="module")
def library() -> None:
    if find_spec("lmcache") is None:
        pytest.skip("lmcache is not installed")


def over(folder: Path | None, **extra: Any) -> dict[str, Any]:
    adapters = [] if folder is None else [{"type": "fs", "base_path": str(folder)}]
    return {"l1_size_gb": MEMORY_GB, "l2_adapters": adapters, **extra}


def open_over(
    folder: Path | None, *, fault: str = "", transfer: dict[str, Any] | None = None, **extra: Any
) -> LLM:
    settings = over(folder, **extra)
    if fault:
        settings = {"over": "lmcache", "plugins": [PLUGIN], "fault": fault, "settings": settings}
    connector = "faulty" if fault else "LMCacheConnectorV1"
    return open_llm(connector, settings, transfer=transfer or {}, plugins=[*FAKE, PLUGIN])


def wait_for(stored: Callable[[], Any], count: int) -> None:
    """Wait until LMCache has stored `count` objects."""
    end_s = time.monotonic() + TIMEOUT_S
    while len(stored()) < count:
        assert time.monotonic() < end_s, "the blocks are not stored"
        time.sleep(0.02)


def wait_for_files(folder: Path, count: int) -> list[Path]:
    """Wait until LMCache has written `count` files, and return them."""
    wait_for(lambda: [*folder.rglob("*.data")], count)
    return sorted(folder.rglob("*.data"))


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return reference_tokens()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("case", conformance.cases(PLUGIN) if find_spec("lmcache") else [], ids=str)
def test_connector_passes_kv_connector_suite(case: Case) -> None:
    case()


@pytest.mark.usefixtures("library")
def test_blocks_round_trip_through_l1(expected: list[list[int]]) -> None:
    with open_over(None) as llm:
        # lazy: after the skip
        from lmcache.usage_telemetry.identity import is_usage_tracking_enabled

        assert not is_usage_tracking_enabled()
        assert run(llm)[0] == expected
        settle(llm)
        assert llm.reset_prefix_cache()
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        counts = only_tier(llm).status.counts
        assert counts.load_failures == counts.store_failures == 0


@pytest.mark.usefixtures("library")
def test_small_l1_stays_within_its_bytes(expected: list[list[int]]) -> None:
    with open_over(None, l1_size_gb=2**-14) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
            settle(llm)
        assert only_tier(llm).status.counts.evicted > 0
        assert only_tier(llm).status.counts.store_failures == 0


@pytest.mark.usefixtures("library")
def test_blocks_survive_restart(expected: list[list[int]], tmp_path: Path) -> None:
    with open_over(tmp_path) as llm:
        assert run(llm)[0] == expected
        settle(llm)
        wait_for_files(tmp_path, only_tier(llm).status.counts.stored)
    with open_over(tmp_path) as llm:
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        assert only_tier(llm).status.counts.load_failures == 0


@pytest.mark.usefixtures("library")
def test_l2_serves_blocks_evicted_from_l1(expected: list[list[int]], tmp_path: Path) -> None:
    with open_over(tmp_path, l1_size_gb=2**-14) as llm:
        assert run(llm)[0] == expected
        settle(llm)
        wait_for_files(tmp_path, only_tier(llm).status.counts.stored)
        assert llm.reset_prefix_cache()
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        counts = only_tier(llm).status.counts
        assert counts.load_failures == counts.store_failures == 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_blocks_of_another_engine_are_found_by_the_next_request(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with (
        open_over(tmp_path) as writer,
        open_over(tmp_path, transfer={"kv_role": "kv_consumer"}) as reader,
    ):
        assert run(reader, PROMPTS[:1])[1] == [0]
        run(writer)
        settle(writer)
        wait_for_files(tmp_path, only_tier(writer).status.counts.stored)
        assert reader.reset_prefix_cache()
        tokens, found = run(reader)
        assert (tokens, min(found)) == (expected, 64)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_blocks_of_other_settings_are_not_found(expected: list[list[int]], tmp_path: Path) -> None:
    with open_over(tmp_path) as llm:
        run(llm)
        settle(llm)
        wait_for_files(tmp_path, only_tier(llm).status.counts.stored)
    extra = over(tmp_path)
    with open_llm("lmcache", extra, plugins=[*FAKE, PLUGIN], dtype="bfloat16") as llm:
        assert run(llm)[1] == [0] * len(PROMPTS)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("split", [(2, 1), (1, 2)], ids=["tensor 2", "pipeline 2"])
def test_each_rank_stores_its_own_shard(split: tuple[int, int], tmp_path: Path) -> None:
    checkpoint = make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=1)
    prompts = [[(7 * i + 3 * j * j) % 290 for j in range(60)] for i in range(3)]
    given = {"kv_connector": "lmcache", "kv_connector_extra_config": over(tmp_path / "blocks")}
    tensor, pipeline = split
    seen = []
    for _ in range(2):
        with LLM(
            str(checkpoint),
            tensor_parallel_size=tensor,
            pipeline_parallel_size=pipeline,
            kv_transfer_config=given,
            dtype="float32",
            max_model_len=96,
            kv_cache_memory_bytes=8 << 20,
            max_num_seqs=4,
            plugins=[PLUGIN],
        ) as llm:
            seen.append(run(llm, prompts))
            settle(llm)
            wait_for_files(tmp_path / "blocks", 2 * only_tier(llm).status.counts.stored)
    (first, _), (second, found) = seen
    assert (first, min(found)) == (second, 48)


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "hang" not in fault])
def test_faults_change_no_tokens(expected: list[list[int]], fault: str, tmp_path: Path) -> None:
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
    ids=["flipped", "truncated", "foreign"],
)
def test_damaged_objects_are_recomputed(
    expected: list[list[int]], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    with open_over(tmp_path) as llm:
        run(llm)
        settle(llm)
        files = wait_for_files(tmp_path, only_tier(llm).status.counts.stored)
    for path in files:
        damage(path)
    with open_over(tmp_path) as llm:
        assert run(llm)[0] == expected
        assert only_tier(llm).status.counts.load_failures > 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_objects_deleted_after_lookup_are_recomputed(
    expected: list[list[int]], tmp_path: Path
) -> None:
    with open_over(tmp_path, l1_size_gb=2**-14) as llm:
        run(llm)
        settle(llm)
        for path in wait_for_files(tmp_path, only_tier(llm).status.counts.stored):
            path.unlink()
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert only_tier(llm).status.counts.load_failures > 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_blocks_round_trip_through_redis_protocol(
    expected: list[list[int]],
) -> None:
    with serving() as server:
        url = {"lmcache.remote_url": f"redis://127.0.0.1:{server.port}"}
        for min_found in (0, 64):
            with open_llm(
                "lmcache", {"l1_size_gb": MEMORY_GB, **url}, plugins=[*FAKE, PLUGIN]
            ) as llm:
                tokens, found = run(llm)
                assert tokens == expected
                assert min(found) >= min_found
                settle(llm)
                wait_for(lambda: server.values, only_tier(llm).status.counts.stored)
                assert only_tier(llm).status.counts.load_failures == 0


@pytest.mark.slow
@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("fault", ["lose", "refuse", "hang"])
def test_failing_server_recomputes(expected: list[list[int]], fault: str) -> None:
    """Only the second engine has a short timeout, for the hanging server."""
    with serving() as server:
        extra = {"l1_size_gb": MEMORY_GB, "lmcache.remote_url": f"redis://127.0.0.1:{server.port}"}
        with open_llm("lmcache", extra, plugins=[*FAKE, PLUGIN]) as llm:
            run(llm)
            settle(llm)
            wait_for(lambda: server.values, only_tier(llm).status.counts.stored)
        limit = {"transfer": {"timeout_s": 1.0}} if fault == "hang" else {}
        with open_llm(
            "lmcache", {**extra, "request_timeout_s": 2.0}, plugins=[*FAKE, PLUGIN], **limit
        ) as llm:
            server.fault = fault
            tokens, found = run(llm)
            assert tokens == expected
            assert max(found) < 64
            assert fault != "hang" or only_tier(llm).status.info()["state"] == "degraded"
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
            r"LMCache cannot start .*NotADirectoryError",
        ),
    ],
)
def test_unusable_l2_adapter_is_rejected(adapter: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineError, match=named):
        open_over(None, l2_adapters=[adapter])


@pytest.mark.usefixtures("library")
def test_l1_smaller_than_two_blocks_is_rejected() -> None:
    with pytest.raises(
        EngineError,
        match=r"l1_size_gb: got 4e-06, which is 4294 bytes on each rank; expected 8192 bytes",
    ):
        open_over(None, l1_size_gb=4e-6)


def test_missing_library_is_rejected() -> None:
    if find_spec("lmcache") is not None:
        pytest.skip("lmcache is installed")
    with pytest.raises(EngineError, match=r"needs lmcache>=0\.5\.6,<0\.6, which is not installed"):
        open_over(None)
