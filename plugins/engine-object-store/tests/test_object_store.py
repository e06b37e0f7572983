"""Blocks come back from a bucket as they went there, and whatever goes wrong with it, the tokens
are right.
"""

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

from engine_object_store.connector import ObjectStore  # noqa: E402 - behind the look for the library
from s3_server import Bucket, serving  # noqa: E402

from core import LLM  # noqa: E402
from core.api import ConfigError, EngineConfig, KVTransferConfig  # noqa: E402
from core.errors import EngineError  # noqa: E402
from core.testing import conformance  # noqa: E402
from core.testing.conformance import Case  # noqa: E402
from core.testing.kv_faults import FAULTS  # noqa: E402
from tests.kv_connectors.trial import (  # noqa: E402
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
from tests.patience import PATIENCE_S  # noqa: E402

PLUGIN = "engine_object_store.plugin"


def open_over(
    url: str, *, fault: str = "", transfer: dict[str, Any] | None = None, **extra: Any
) -> LLM:
    extra = {"url": url, **extra}
    if fault:
        extra = {"over": "object_store", "plugins": [PLUGIN], "fault": fault, "settings": extra}
    connector = "faulty" if fault else "object_store"
    return open_llm(connector, extra, transfer=transfer or {}, plugins=[*FAKE, PLUGIN])


def of(bucket: Bucket) -> dict[str, Any]:
    options = {
        "endpoint": bucket.url,
        "region": "us-east-1",
        "access_key_id": "me",
        "secret_access_key": "it",
    }
    return {"url": "s3://bucket/folder", "options": options}


def wait_for_bytes(llm: LLM, num_bytes: int) -> None:
    """Step until an engine has found so many bytes of blocks."""
    end_s = time.monotonic() + PATIENCE_S
    while traffic(llm)._holdings.directory.num_bytes < num_bytes:
        assert time.monotonic() < end_s, "what is in the bucket is not found"
        llm.core.step()
        time.sleep(0.02)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return alone()


@pytest.mark.slow
@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_it_holds_to_the_contract(case: Case) -> None:
    case()


@pytest.mark.slow
def test_blocks_survive_the_engine(expected: list[list[int]], tmp_path: Path) -> None:
    url = (tmp_path / "bucket").as_uri()
    with open_over(url) as llm:
        assert run(llm)[0] == expected
    with open_over(url) as llm:
        tokens, found = run(llm)
        assert (tokens, min(found)) == (expected, 64)
        assert traffic(llm).counts.unloaded == 0


@pytest.mark.slow
def test_what_another_engine_has_put_there_is_found_in_time(
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
        wait_for_bytes(reader, traffic(writer)._holdings.directory.num_bytes)
        assert reader.reset_prefix_cache()
        tokens, found = run(reader)
        assert (tokens, min(found)) == (expected, 64)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if "hang" not in fault])
def test_tokens_are_right_whatever_the_fault(
    expected: list[list[int]], fault: str, tmp_path: Path
) -> None:
    with open_over((tmp_path / "bucket").as_uri(), fault=fault) as llm:
        check_under(fault, llm, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [flip, lambda path: path.write_bytes(path.read_bytes()[:-9]), Path.unlink],
    ids=["flipped", "cut short", "gone"],
)
def test_damaged_objects_are_noticed_and_computed_again(
    expected: list[list[int]], damage: Callable[[Path], None], tmp_path: Path
) -> None:
    with open_over((tmp_path / "bucket").as_uri()) as llm:
        run(llm)
        settle(llm)
        for path in sorted(tmp_path.rglob("*-*")):
            damage(path)
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected
        assert traffic(llm).counts.unloaded > 0


@pytest.mark.slow
def test_a_small_bucket_is_kept_to_its_bytes(expected: list[list[int]], tmp_path: Path) -> None:
    most = 30 * 1024
    with open_over((tmp_path / "bucket").as_uri(), max_bytes=most) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
        settle(llm)
        assert traffic(llm).counts.evicted > 0
    heads = 64 * 1024  # what objects have besides blocks is little
    assert sum(path.stat().st_size for path in tmp_path.rglob("*-*")) <= most + heads


@pytest.mark.slow
def test_blocks_come_back_from_a_server_that_speaks_s3(expected: list[list[int]]) -> None:
    with serving() as bucket:
        with open_over(**of(bucket)) as llm:
            assert run(llm)[0] == expected
        assert all(path.startswith("/bucket/folder/") for path in bucket.objects)
        with open_over(**of(bucket)) as llm:
            tokens, found = run(llm)
            assert (tokens, min(found)) == (expected, 64)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuse", "hang", "cut"])
def test_a_server_that_fails_costs_a_recomputation(expected: list[list[int]], fault: str) -> None:
    """What writes has all the time it wants; only the engine that is to give up what hangs has a
    limit of its own.
    """
    limit: dict[str, Any] = {"timeout_s": 1.0} if fault == "hang" else {}
    with serving() as bucket:
        with open_over(**of(bucket)) as writer:
            run(writer)
            settle(writer)
            num_bytes = traffic(writer)._holdings.directory.num_bytes
        with open_over(**of(bucket), transfer=limit) as reader:
            wait_for_bytes(reader, num_bytes)
            bucket.fault = fault
            assert run(reader)[0] == expected
            assert traffic(reader).counts.unloaded > 0
            assert traffic(reader).info()["state"] == "degraded"
            bucket.released.set()


@pytest.mark.parametrize(
    "url", ["nope://bucket", "no-url", "s3://bucket/folder", "file:///dev/null/bucket"]
)
def test_a_bucket_that_cannot_be_written_to_stops_the_start(url: str) -> None:
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
        ({"url": "memory://", "max_bytes": 0}, "max_bytes must be more than 0"),
        ({"url": "memory://", "request_timeout_s": -1}, "request_timeout_s must be more than 0"),
        ({"url": "memory://", "options": {"region": 3}}, "options: expected `str`"),
        ({"url": "memory://", "survey": 3}, "survey_s"),
    ],
)
def test_settings_are_checked(extra: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        ObjectStore(
            EngineConfig(), KVTransferConfig("object_store", kv_connector_extra_config=extra)
        )
    assert named in str(refused.value)
