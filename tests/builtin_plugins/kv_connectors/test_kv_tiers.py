"""Evicted blocks are loaded from the tier: equal tokens, and nothing is computed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.features.kv_tiers.metrics import TierMetrics
from core import LLM, SamplingParams
from core.errors import EngineError
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.kv_connectors.small_engines import (
    PROMPTS,
    only_tier,
    open_llm,
    reference_tokens,
    run,
    run_twice_in_ranks,
    settle,
)

CONNECTORS: dict[str, dict[str, Any]] = {
    "offload": {"cpu_bytes_to_use": 4 << 20},
    "offload, arc": {"cpu_bytes_to_use": 4 << 20, "eviction_policy": "arc"},
    "disk": {"folder": "blocks"},
}


@pytest.fixture(scope="module", params=["fake:", "windowed:"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(model: str) -> list[list[int]]:
    return reference_tokens(model)


@pytest.mark.parametrize(
    ("connector", "ahead"),
    [
        pytest.param("offload", False, marks=pytest.mark.slow),
        ("offload", True),
        ("offload, arc", False),
        pytest.param("offload, arc", True, marks=pytest.mark.slow),
        ("disk", False),
        ("disk", True),
    ],
)
def test_second_run_loads_all_full_blocks(
    model: str,
    expected: list[list[int]],
    connector: str,
    ahead: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # the folder is a relative path
    plugins = [
        str(Path(__file__).parents[3] / "tests/system/proofs/features/windowed.py"),
        "core.testing.fake_model",
    ]
    with open_llm(
        connector.partition(",")[0],
        CONNECTORS[connector],
        model=model,
        async_scheduling=ahead,
        plugins=plugins,
    ) as llm:
        assert run(llm)[0] == expected
        settle(llm)
        assert llm.reset_prefix_cache()
        for _ in range(2):
            tokens, found = run(llm)
            assert tokens == expected
            assert min(found) == 64  # all full blocks of 70 tokens
        assert only_tier(llm).status.counts.loaded > len(PROMPTS)
        assert only_tier(llm).status.counts.load_failures == 0


def test_hits_and_queries_of_tiers_are_counted_in_tokens() -> None:
    extra = {"cpu_bytes_to_use": 4 << 20}
    with open_llm("offload", extra, num_gpu_blocks_override=200) as llm:  # no preemption

        def counted() -> tuple[float, float]:
            numbers = TierMetrics([only_tier(llm)]).numbers()
            name = "external_prefix_cache"
            return numbers[f"{name}_hits_total"], numbers[f"{name}_queries_total"]

        run(llm)
        length = sum(map(len, PROMPTS))
        assert counted() == (0, length)
        settle(llm)
        assert llm.reset_prefix_cache()
        _, found = run(llm)
        assert counted() == (sum(found), 2 * length)


def test_disk_blocks_survive_restart_for_the_same_layout_only(
    tmp_path: Path,
) -> None:
    extra = {"folder": str(tmp_path)}
    with open_llm("disk", extra) as llm:
        expected = run(llm)[0]
    with open_llm("disk", extra) as llm:
        tokens, found = run(llm)
        assert tokens == expected
        assert min(found) == 64
        assert only_tier(llm).status.counts.loaded >= 60
    with open_llm("disk", extra, dtype="bfloat16") as llm:
        assert max(run(llm)[1]) == 0


def test_small_tier_evicts_within_its_byte_limit(tmp_path: Path) -> None:
    with open_llm() as llm:
        expected = run(llm)[0]
    limit = 30 * 1024
    with open_llm("disk", {"folder": str(tmp_path), "max_bytes": limit}) as llm:
        for _ in range(2):
            assert run(llm)[0] == expected
        tier = only_tier(llm)
        assert tier.status.counts.evicted > 0
        assert 0 < tier._index.directory.num_bytes <= limit
    headers = 64 * 1024  # more than the file headers
    assert sum(path.stat().st_size for path in tmp_path.rglob("*-*")) <= limit + headers


@pytest.mark.parametrize("role", ["kv_producer", "kv_consumer"])
def test_kv_role_restricts_loads_and_stores(role: str, tmp_path: Path) -> None:
    with open_llm("disk", {"folder": str(tmp_path)}, transfer={"kv_role": role}) as llm:
        run(llm)
        run(llm)
        counts = only_tier(llm).status.counts
        assert (counts.stored > 0) == (role == "kv_producer")
        assert counts.loaded == 0


@pytest.mark.parametrize(("connector", "ahead"), [("offload", True), ("disk", False)])
def test_blocks_of_replaced_weights_are_not_loaded(
    connector: str, ahead: bool, tmp_path: Path
) -> None:
    """Replaced weights do not change the engine's block keys."""

    def replace_weights(llm: LLM) -> None:
        model = llm.core.executor.worker.model
        model.embedding = -model.embedding
        model.weights_version = 2
        settle(llm)
        assert llm.reset_prefix_cache()

    with open_llm() as llm:
        first = run(llm)[0]
        replace_weights(llm)
        second = run(llm)[0]
    assert first != second
    extra = {"offload": {"cpu_bytes_to_use": 4 << 20}, "disk": {"folder": str(tmp_path)}}[connector]
    with open_llm(connector, extra, async_scheduling=ahead) as llm:
        assert run(llm)[0] == first
        settle(llm)
        replace_weights(llm)
        assert run(llm)[0] == second
        assert only_tier(llm).status.info()["state"] == "ready"
        settle(llm)
        assert llm.reset_prefix_cache()
        tokens, found = run(llm)
        assert (tokens, min(found)) == (second, 64)
    if connector == "disk":
        with open_llm(connector, extra) as llm:
            tokens, found = run(llm)
            assert (tokens, min(found)) == (first, 64)


def test_abort_during_load_releases_all_blocks() -> None:
    extra = {"over": "offload", "fault": "slow", "settings": {"cpu_bytes_to_use": 4 << 20}}
    with open_llm("faulty", extra) as llm:
        run(llm)
        settle(llm)
        assert llm.reset_prefix_cache()
        llm.add_request("gone", PROMPTS[0], SamplingParams(max_tokens=5, detokenize=False))
        while not only_tier(llm)._reads._loads:
            llm.step()
        llm.abort("gone")
        assert run(llm)[1][0] == 64
        assert not llm.core.scheduler._life.pinned


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    [
        "Qwen3ForCausalLM",
        "Gemma2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "FalconH1ForCausalLM",
        "Mamba2ForCausalLM",
    ],
)
@pytest.mark.parametrize("connector", ["offload", "disk"])
def test_every_kv_group_kind_round_trips(architecture: str, connector: str, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1)
    prompts = [[(7 * i + 3 * j * j) % 290 for j in range(100)] for i in range(3)]
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, detokenize=False)
    options: dict[str, Any] = {
        "dtype": "float32",
        "block_size": 16,
        "mamba_block_size": 32,
        "max_model_len": 128,
        "kv_cache_memory_bytes": 16 << 20,
        "max_num_seqs": 4,
        "num_threads": 1,
    }
    extra = {
        "offload": {"cpu_bytes_to_use": 64 << 20},
        "disk": {"folder": str(tmp_path / "blocks")},
    }[connector]
    given = {"kv_connector": connector, "kv_connector_extra_config": extra}
    with LLM(str(folder), kv_transfer_config=given, **options) as llm:
        expected = [o.outputs[0].token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
        settle(llm)
        assert llm.reset_prefix_cache()
        again = llm.generate(prompts, params, use_tqdm=False)
        assert [o.outputs[0].token_ids for o in again] == expected
        assert min(o.num_cached_tokens or 0 for o in again) == 96
        assert only_tier(llm).status.counts.loaded > 0


@pytest.mark.slow
def test_cross_attention_is_rejected(tmp_path: Path) -> None:
    folder = make_checkpoint("BartForConditionalGeneration", tmp_path / "model", seed=1)
    with pytest.raises(EngineError, match="cross attention"):
        LLM(str(folder), kv_offloading_size=0.1, dtype="float32", max_model_len=64)


@pytest.mark.slow
@pytest.mark.parametrize("split", [(2, 1), (1, 2)], ids=["tensor 2", "pipeline 2"])
def test_each_rank_stores_its_own_shard(split: tuple[int, int], tmp_path: Path) -> None:
    checkpoint = make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=1)
    first, second = run_twice_in_ranks(checkpoint, split, "disk", tmp_path / "blocks")
    assert first[0] == second[0]
    assert min(second[1]) == 48
