"""Lookups in stores that cannot be listed, and their failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.testing import conformance
from core.testing.checkpoints import make_checkpoint
from core.testing.conformance import Case
from tests.builtin_plugins.kv_connectors.small_engines import (
    FAKE,
    PROMPTS,
    Tokens,
    only_tier,
    open_llm,
    run,
    run_twice_in_ranks,
    settle,
)

PLUGIN = "tests.builtin_plugins.kv_connectors.lookup_connector"
PLUGINS = [*FAKE, PLUGIN]


def open_with_lookup(folder: Path, *, fault: str = "", **options: Any) -> LLM:
    return open_llm(
        "lookup_folder", {"folder": str(folder), "fault": fault}, plugins=PLUGINS, **options
    )


def fill(folder: Path, **options: Any) -> None:
    with open_with_lookup(folder, **options) as llm:
        run(llm)
        settle(llm)


@pytest.mark.parametrize("case", conformance.cases(PLUGIN), ids=str)
def test_lookup_connector_passes_kv_connector_suite(case: Case) -> None:
    case()


def test_lookup_finds_blocks_just_written_by_another_engine(
    expected: Tokens, tmp_path: Path
) -> None:
    with open_with_lookup(tmp_path, transfer={"kv_role": "kv_consumer"}) as reader:
        assert run(reader, PROMPTS[:1])[1] == [0]
        assert reader.reset_prefix_cache()
        fill(tmp_path)
        tokens, found = run(reader)
        assert (tokens, min(found)) == (expected, 64)
        assert only_tier(reader).status.counts.load_failures == 0


def test_cached_or_stored_prefix_is_not_looked_up(tmp_path: Path) -> None:
    with open_with_lookup(tmp_path) as llm:
        run(llm, PROMPTS[:1] * 2)
        settle(llm)
        num_lookups = only_tier(llm)._lookup._num_lookups
        run(llm, [PROMPTS[0][:64]])
        assert llm.reset_prefix_cache()
        run(llm, [PROMPTS[0][:64]])
        assert only_tier(llm)._lookup._num_lookups == num_lookups


def test_producer_sends_no_lookups(tmp_path: Path) -> None:
    with open_with_lookup(tmp_path, transfer={"kv_role": "kv_producer"}) as llm:
        run(llm, PROMPTS[:1])
        assert only_tier(llm)._lookup is None


@pytest.mark.parametrize("fault", ["fails", "hangs"])
def test_failed_lookup_recomputes(expected: Tokens, fault: str, tmp_path: Path) -> None:
    fill(tmp_path)
    limit: dict[str, Any] = {"transfer": {"timeout_s": 0.5}} if fault == "hangs" else {}
    with open_with_lookup(tmp_path, fault=fault, **limit) as llm:
        tokens, found = run(llm)
        assert tokens == expected
        assert max(found) < 64  # only blocks that this engine itself has stored meanwhile
        assert only_tier(llm).status.info()["state"] == "degraded"
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected  # the circuit breaker is open, or lookups time out


def test_forgotten_request_leaves_no_lookup(expected: Tokens, tmp_path: Path) -> None:
    with open_with_lookup(tmp_path) as llm:
        lookup = only_tier(llm)._lookup
        lookup.forget("unknown")
        assert run(llm)[0] == expected
        assert not lookup._open
        assert not lookup._lookup_of
        assert not lookup.unsent


@pytest.mark.slow
@pytest.mark.parametrize("split", [(2, 1), (1, 2)], ids=["tensor 2", "pipeline 2"])
def test_lookup_needs_blocks_on_all_ranks(split: tuple[int, int], tmp_path: Path) -> None:
    checkpoint = make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=1)
    seen = run_twice_in_ranks(
        checkpoint, split, "lookup_folder", tmp_path / "blocks", plugins=PLUGINS
    )
    (first, _), (second, found) = seen
    assert (first, min(found)) == (second, 48)
