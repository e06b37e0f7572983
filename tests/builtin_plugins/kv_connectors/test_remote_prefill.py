"""Disaggregated prefill over `tcp`: tokens match one engine, despite all failures."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.kv_connectors.api import KVTransferConfig
from builtin_plugins.kv_connectors.tcp import store
from builtin_plugins.kv_connectors.tcp.connector import Tcp
from core import LLM
from core.api import ConfigError, EngineConfig, InvalidRequest
from core.errors import EngineError
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.kv_connectors.cutting_proxy import cutting
from tests.builtin_plugins.kv_connectors.engine_pairs import (
    FIRST,
    REMOTE_DECODE,
    TOKEN,
    decode,
    open_peer,
    prefill,
)
from tests.builtin_plugins.kv_connectors.small_engines import (
    PARAMS,
    PROMPTS,
    free_port,
    only_tier,
    open_llm,
    reference_tokens,
    run,
)


@pytest.fixture(scope="module", params=["windowed:", pytest.param("fake:", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(model: str) -> list[list[int]]:
    return reference_tokens(model)


@pytest.fixture(scope="module")
def prefiller(model: str) -> Iterator[LLM]:
    with open_peer("kv_producer", model=model) as llm:
        yield llm


@pytest.mark.parametrize("ahead", [False, True], ids=["depth 1", "depth 2"])
def test_decode_engine_loads_prefilled_blocks(
    model: str, expected: list[list[int]], prefiller: LLM, ahead: bool
) -> None:
    with open_peer("kv_consumer", model=model, async_scheduling=ahead) as llm:
        tokens, found = decode(llm, prefill(prefiller))
        assert (tokens, min(found)) == (expected, 64)
        assert only_tier(llm).status.counts.load_failures == 0
        assert not only_tier(llm)._index.directory._offered
        assert llm.reset_prefix_cache()
        assert run(llm)[1] == [0] * len(PROMPTS)  # without an offer it fetches nothing
    assert only_tier(prefiller).status.counts.loaded == 0


def test_offer_has_vllms_fields(model: str, prefiller: LLM) -> None:
    (offer,) = prefill(prefiller, PROMPTS[:1])
    assert (offer["do_remote_prefill"], offer["do_remote_decode"]) == (True, False)
    assert len(offer["remote_block_ids"]) == 70 // 8
    assert {"remote_engine_id", "remote_host", "remote_port"} <= offer.keys()
    assert prefiller.generate(PROMPTS[:1], FIRST, use_tqdm=False)[0].kv_transfer_params is None


def test_dead_prefill_engine_recomputes(model: str, expected: list[list[int]]) -> None:
    with open_peer("kv_producer", model=model) as other:
        offers = prefill(other)
    with open_peer("kv_consumer", model=model) as llm:
        tokens, found = decode(llm, offers)
        assert (tokens, max(found)) == (expected, 0)
        info = only_tier(llm).status.info()
        assert info["state"] == "degraded"
        assert "PeerError" in info["reason"]


@pytest.mark.parametrize("which", [0, pytest.param(11, marks=pytest.mark.slow)])
def test_connection_cut_inside_a_block_recomputes(
    model: str, expected: list[list[int]], which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with (
        open_peer("kv_producer", port, model=model) as other,
        open_peer("kv_consumer", model=model) as llm,
    ):
        offers = prefill(other)
        size = llm.core.scheduler.kv.layout.pools[0].block_bytes
        with cutting(port, size, which) as proxy:
            monkeypatch.setattr(
                store, "address_of", lambda host, port: f"tcp://127.0.0.1:{proxy.port}"
            )
            tokens, found = decode(llm, offers)
            assert proxy.was_cut.is_set()
            assert (tokens, min(found)) == (expected, 0)
            assert only_tier(llm).status.counts.load_failures > 0
            assert only_tier(llm).status.counts.loaded <= which
            assert not llm.core.scheduler._life.pinned


def test_blocks_evicted_by_the_peer_are_recomputed(model: str, expected: list[list[int]]) -> None:
    with (
        open_peer("kv_producer", model=model, transfer={"kv_buffer_size": 12 << 10}) as other,
        open_peer("kv_consumer", model=model) as llm,
    ):
        tokens, found = decode(llm, prefill(other))
        assert tokens == expected
        assert 0 in found


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"extra": {"token": "another token of the tests"}}, "token"),
        ({"dtype": "bfloat16"}, "dtype is float32 there and bfloat16 here"),
        ({"block_size": 16}, "hash_block_size is 8 there and 16 here"),
    ],
    ids=["token", "dtype", "block size"],
)
def test_peer_with_other_settings_is_rejected(
    model: str,
    prefiller: LLM,
    options: dict[str, Any],
    named: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    offers = prefill(prefiller)
    with open_peer("kv_consumer", model=model, **options) as llm:
        if "extra" in options:
            with pytest.raises(InvalidRequest, match="not signed with this engine's token"):
                decode(llm, offers)
            return
        assert max(decode(llm, offers)[1]) == 0
        assert named in caplog.text
        info = only_tier(llm).status.info()
        assert (info["state"], named in info["reason"]) == ("degraded", True), info


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)], ids=["decode over 2", "prefill over 2"])
def test_peer_with_other_tensor_parallel_size_is_rejected(
    ranks: tuple[int, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several failing ranks, the error that names the difference is reported."""
    folder = str(make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=1))
    prompts = [[(7 * i + 3 * j * j) % 290 for j in range(60)] for i in range(3)]
    own: dict[str, Any] = {"model": folder, "num_gpu_blocks_override": 40, "plugins": []}
    named = f"tensor_parallel_size is {ranks[0]} there and {ranks[1]} here"
    with (
        open_peer("kv_producer", tensor_parallel_size=ranks[0], **own) as producer,
        open_peer("kv_consumer", tensor_parallel_size=ranks[1], **own) as consumer,
    ):
        expected = [
            list(o.outputs[0].token_ids) for o in producer.generate(prompts, PARAMS, use_tqdm=False)
        ]
        assert decode(consumer, prefill(producer, prompts), prompts) == (expected, [0] * 3)
        info = only_tier(consumer).status.info()
        assert (info["state"], named in info["reason"]) == ("degraded", True), info
        assert named in caplog.text


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"do_remote_decode": "yes"}, "bool"),
        ({"do_remote_decode": True, "do_remote_prefill": True}, "expected only one of them"),
        ({"do_remote_prefill": True}, "remote_engine_id"),
        ({"do_remote_decode": True, "remote_port": 1 << 70}, "larger than any"),
        ("yes", "object"),
        (
            {
                "do_remote_prefill": True,
                "remote_engine_id": "x",
                "remote_host": "example.org",
                "remote_port": 80,
                "remote_seal": "0" * 64,
            },
            "not signed with this engine's token",
        ),
    ],
)
def test_forged_kv_transfer_params_are_rejected(
    prefiller: LLM, params: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        prefiller.generate(PROMPTS[:1], FIRST, use_tqdm=False, kv_transfer_params=params)
    assert refused.value.field == "kv_transfer_params"


def test_kv_transfer_params_rejected_without_connector() -> None:
    with (
        open_llm("offload", {"cpu_bytes_to_use": 1 << 20}) as llm,
        pytest.raises(InvalidRequest, match="such as tcp"),
    ):
        llm.generate(PROMPTS[:1], FIRST, use_tqdm=False, kv_transfer_params=REMOTE_DECODE)


@pytest.mark.parametrize(
    ("extra", "transfer", "named"),
    [
        ({}, {}, "needs token or token_file"),
        ({"token": "short"}, {}, "5 characters"),
        ({"token_file": "/nowhere/at/all"}, {}, "token_file /nowhere/at/all cannot be read"),
        ({"token": TOKEN, "peer_timeout_s": 0}, {}, "peer_timeout_s"),
        ({"token": TOKEN}, {"kv_port": 0}, "kv_port 0"),
        ({"token": TOKEN}, {"kv_ip": "a b"}, "kv_ip 'a b'"),
        ({"token": TOKEN}, {"kv_buffer_size": 0.0}, "kv_buffer_size"),
    ],
)
def test_invalid_transfer_settings_are_rejected(
    extra: dict[str, Any], transfer: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        Tcp(EngineConfig(), KVTransferConfig("tcp", kv_connector_extra_config=extra, **transfer))
    assert named in str(refused.value)


def test_port_in_use_is_rejected() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EngineError, match="cannot listen there"):
            open_peer("kv_both", taken.getsockname()[1])
