"""Connector `object_store`: blocks round-trip, and faults change no tokens."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore")
for folder in (Path(__file__).parent, Path(__file__).parents[1]):
    sys.path.insert(0, str(folder))

from engine_object_store.connector import ObjectStore  # noqa: E402 - needs obstore
from s3_server import Bucket, serving  # noqa: E402

from builtin_plugins.kv_connectors.api import KVTransferConfig  # noqa: E402
from builtin_plugins.kv_connectors.testing import FAULTS  # noqa: E402
from core import LLM  # noqa: E402
from core.api import ConfigError, EngineConfig  # noqa: E402
from core.errors import EngineError  # noqa: E402
from core.testing import conformance  # noqa: E402
from core.testing.conformance import Case  # noqa: E402
from tests.builtin_plugins.kv_connectors.small_engines import (  # noqa: E402
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
from tests.timeouts import TIMEOUT_S  # noqa: E402

PLUGIN = "engine_object_store.plugin"


def open_over(
    url: str, *, fault: str = "", transfer: dict[str, Any] | None = None, **extra: Any
) -> LLM:
    extra = {"url": url, **extra}
    if fault:
        extra = {"over": "object_store", "plugins": [PLUGIN], "fault": fault, "settings": extra}
    connector = "faulty" if fault else "object_store"
    return open_llm(connector, extra, transfer=transfer or {}, plugins=[*FAKE, PLUGIN])


def settings_for(bucket: Bucket) -> dict[str, Any]:
    options = {
        "endpoint": bucket.url,
        "region": "us-east-1",
        "access_key_id": "me",
        "secret_access_key": "it",
    }
    return {"url": "s3://bucket/folder", "options": options}


def wait_for_bytes(llm: LLM, num_bytes: int) -> None:
    """Step until an engine has found `num_bytes` of blocks."""
    end_s = time.monotonic() + TIMEOUT_S
    while only_tier(llm)._index.directory.num_bytes < num_bytes:
        assert time.monotonic() < end_s, "the blocks in the bucket are not found"
        llm.core.step()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return reference_tokens()


@pytest.mark.slow
@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_connector_passes_kv_connector_suite(case: Case) -> None:
    case()


@pytest.mark.slow
def test_blocks_survive_restart(expected: list[list[int]], tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    with open_over(url) as llm:
        assert run(llm)[0] == expected
    with open_over(url) as llm:
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        assert only_tier(llm).status.counts.load_failures == 0


@pytest.mark.slow
def test_periodic_survey_finds_blocks_of_another_engine(
    expected: list[list[int]], tmp_path: Path
) -> None:
    url = (tmp_path / "bucket").as_uri()
    with (
        open_over(url) as writer,
        open_over(url, survey_s=0.1, transfer={"kv_role": "kv_consumer"}) as reader,
    ):
        assert run(reader, PROMPTS[:1])[1] == [0]
        run(writer)
        settle(writer)
        wait_for_bytes(reader, only_tier(writer)._index.directory.num_bytes)
        assert reader.reset_prefix_cache()
        tokens, found = run(reader)
        assert (tokens, min(found)) == (expected, 64)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "hang" not in fault])
def test_faults_change_no_tokens(expected: list[list[int]], fault: str, tmp_path: Path) -> None:
    with open_over((tmp_path / "bucket").as_uri(), fault=fault) as llm:
        check_under(fault, llm, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: path.write_bytes(path.read_bytes()[:-9]), Path.unlink],
    ids=["flipped", "truncated", "deleted"],
)
def test_damaged_objects_are_recomputed(
    expected: list[list[int]], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    with open_over((tmp_path / "bucket").as_uri()) as llm:
        run(llm)
        settle(llm)
        for path in sorted(tmp_path.rglob("*-*")):
            damage(path)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert only_tier(llm).status.counts.load_failures > 0


@pytest.mark.slow
def test_small_bucket_stays_within_its_bytes(expected: list[list[int]], tmp_path: Path) -> None:
    limit = 30 * 1024
    with open_over((tmp_path / "bucket").as_uri(), max_bytes=limit) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
        settle(llm)
        assert only_tier(llm).status.counts.evicted > 0
    headers = 64 * 1024  # more than the object headers
    assert sum(path.stat().st_size for path in tmp_path.rglob("*-*")) <= limit + headers


@pytest.mark.slow
def test_blocks_round_trip_through_s3(expected: list[list[int]]) -> None:
    with serving() as bucket:
        with open_over(**settings_for(bucket)) as llm:
            assert run(llm)[0] == expected
        assert all(path.startswith("/bucket/folder/") for path in bucket.objects)
        with open_over(**settings_for(bucket)) as llm:
            tokens, found = run(llm)
            assert (tokens, min(found)) == (expected, 64)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuse", "hang", "cut"])
def test_failing_server_recomputes(expected: list[list[int]], fault: str) -> None:
    """Only the reading engine has a short timeout, for the hanging server."""
    limit: dict[str, Any] = {"timeout_s": 1.0} if fault == "hang" else {}
    with serving() as bucket:
        with open_over(**settings_for(bucket)) as writer:
            run(writer)
            settle(writer)
            num_bytes = only_tier(writer)._index.directory.num_bytes
        with open_over(**settings_for(bucket), transfer=limit) as reader:
            wait_for_bytes(reader, num_bytes)
            bucket.fault = fault
            assert run(reader)[0] == expected
            assert only_tier(reader).status.counts.load_failures > 0
            assert only_tier(reader).status.info()["state"] == "degraded"
            bucket.released.set()


@pytest.mark.parametrize(
    "url", ["nope://bucket", "no-url", "s3://bucket/folder", "file:///dev/null/bucket"]
)
def test_unwritable_bucket_is_rejected(url: str) -> None:
    extra = {
        "options": {
            "endpoint": "http://127.0.0.1:1",
            "region": "us-east-1",
            "skip_signature": "true",
        }
    }
    with pytest.raises(EngineError, match=rf"url '{url}' cannot be written to"):
        open_over(url, **extra if url.startswith("s3") else {})


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({}, "needs 'url'"),
        ({"url": "memory://", "max_bytes": 0}, "max_bytes: got 0"),
        ({"url": "memory://", "request_timeout_s": -1}, "request_timeout_s: got -1"),
        ({"url": "memory://", "options": {"region": 3}}, "options: expected `str`"),
        ({"url": "memory://", "survey": 3}, "survey_s"),
    ],
)
def test_invalid_transfer_settings_are_rejected(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ObjectStore(
            EngineConfig(), KVTransferConfig("object_store", kv_connector_extra_config=extra)
        )
    assert named in str(refused.value)
