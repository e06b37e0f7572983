"""Blocks that one engine has computed and another goes on with: the tokens are those of one engine,
whatever is lost between.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.kv_connectors.tcp import store
from builtin_plugins.kv_connectors.tcp.connector import Tcp
from core import LLM
from core.api import ConfigError, EngineConfig, InvalidRequest, KVTransferConfig
from core.errors import EngineError
from core.testing.checkpoints import make_checkpoint
from tests.kv_connectors.cutting import cutting
from tests.kv_connectors.pairs import FIRST, TOKEN, WANTED, decode, open_peer, prefill
from tests.kv_connectors.trial import PARAMS, PROMPTS, alone, free_port, open_llm, run, traffic


@pytest.fixture(scope="module", params=["windowed:", pytest.param("fake:", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(model: str) -> list[list[int]]:
    return alone(model)


@pytest.fixture(scope="module")
def prefiller(model: str) -> Iterator[LLM]:
    with open_peer("kv_producer", model=model) as llm:
        yield llm


@pytest.mark.parametrize("ahead", [False, True], ids=["depth 1", "depth 2"])
def test_an_engine_goes_on_with_what_another_has_computed(
    model: str, expected: list[list[int]], prefiller: LLM, ahead: bool
) -> None:
    with open_peer("kv_consumer", model=model, async_scheduling=ahead) as llm:
        tokens, found = decode(llm, prefill(prefiller))
        assert (tokens, min(found)) == (expected, 64)
        assert traffic(llm).counts.unloaded == 0
        assert not traffic(llm)._holdings.directory._offered
        assert llm.reset_prefix_cache()
        assert run(llm)[1] == [0] * len(PROMPTS)  # without being told it asks nobody
    assert traffic(prefiller).counts.loaded == 0


def test_an_offer_says_what_vllm_s_does(model: str, prefiller: LLM) -> None:
    (offer,) = prefill(prefiller, PROMPTS[:1])
    assert (offer["do_remote_prefill"], offer["do_remote_decode"]) == (True, False)
    assert len(offer["remote_block_ids"]) == 70 // 8
    assert {"remote_engine_id", "remote_host", "remote_port"} <= offer.keys()
    assert prefiller.generate(PROMPTS[:1], FIRST, use_tqdm=False)[0].kv_transfer_params is None


def test_an_engine_that_is_gone_costs_a_recomputation(
    model: str, expected: list[list[int]]
) -> None:
    with open_peer("kv_producer", model=model) as other:
        offers = prefill(other)
    with open_peer("kv_consumer", model=model) as llm:
        tokens, found = decode(llm, offers)
        assert (tokens, max(found)) == (expected, 0)
        info = traffic(llm).info()
        assert info["state"] == "degraded"
        assert "PeerError" in info["reason"]


@pytest.mark.parametrize("which", [0, pytest.param(11, marks=pytest.mark.slow)])
def test_a_connection_that_is_cut_inside_a_block_costs_a_recomputation(
    model: str, expected: list[list[int]], which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with (
        open_peer("kv_producer", port, model=model) as other,
        open_peer("kv_consumer", model=model) as llm,
    ):
        offers = prefill(other)
        size = llm.core.scheduler.kv.layout.pools[0].block_bytes
        with cutting(port, size, which) as cutter:
            monkeypatch.setattr(
                store, "address_of", lambda host, port: f"tcp://127.0.0.1:{cutter.port}"
            )
            tokens, found = decode(llm, offers)
            assert cutter.was_cut.is_set()
            assert (tokens, min(found)) == (expected, 0)
            assert traffic(llm).counts.unloaded > 0
            assert traffic(llm).counts.loaded <= which
            assert not llm.core.scheduler._life.kept


def test_what_the_other_has_let_go_costs_a_recomputation(
    model: str, expected: list[list[int]]
) -> None:
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
def test_an_engine_that_is_set_up_otherwise_is_refused_by_name(
    model: str,
    prefiller: LLM,
    options: dict[str, Any],
    named: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    offers = prefill(prefiller)
    with open_peer("kv_consumer", model=model, **options) as llm:
        if "extra" in options:
            with pytest.raises(InvalidRequest, match="no engine with this one's token"):
                decode(llm, offers)
            return
        assert max(decode(llm, offers)[1]) == 0
        assert named in caplog.text
        info = traffic(llm).info()
        assert (info["state"], named in info["reason"]) == ("degraded", True), info


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1, 2), (2, 1)], ids=["decode over 2", "prefill over 2"])
def test_an_engine_over_other_ranks_is_refused_by_name(
    ranks: tuple[int, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several ranks that fail, what the one says counts that was told why."""
    folder = str(make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=1))
    prompts = [[(7 * i + 3 * j * j) % 290 for j in range(60)] for i in range(3)]
    own: dict[str, Any] = {"model": folder, "num_gpu_blocks_override": 40, "plugins": []}
    named = f"tensor_parallel_size is {ranks[0]} there and {ranks[1]} here"
    with (
        open_peer("kv_producer", tensor_parallel_size=ranks[0], **own) as producer,
        open_peer("kv_consumer", tensor_parallel_size=ranks[1], **own) as consumer,
    ):
        want = [
            list(o.outputs[0].token_ids) for o in producer.generate(prompts, PARAMS, use_tqdm=False)
        ]
        assert decode(consumer, prefill(producer, prompts), prompts) == (want, [0] * 3)
        info = traffic(consumer).info()
        assert (info["state"], named in info["reason"]) == ("degraded", True), info
        assert named in caplog.text


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"do_remote_decode": "yes"}, "bool"),
        ({"do_remote_decode": True, "do_remote_prefill": True}, "one engine does one of them"),
        ({"do_remote_prefill": True}, "remote_engine_id"),
        ({"do_remote_decode": True, "remote_port": 1 << 70}, "larger than any"),
        ("yes", "object"),
        (
            {
                "do_remote_prefill": True, "remote_engine_id": "x", "remote_host": "example.org", "remote_port": 80,
                "remote_seal": "0" * 64,
            },
            "no engine with this one's token",
        ),
    ],
)  # fmt: skip
def test_params_that_no_engine_has_made_are_refused(
    prefiller: LLM, params: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        prefiller.generate(PROMPTS[:1], FIRST, use_tqdm=False, kv_transfer_params=params)
    assert refused.value.field == "kv_transfer_params"


def test_without_such_a_connector_the_field_is_refused() -> None:
    with (
        open_llm("offload", {"cpu_bytes_to_use": 1 << 20}) as llm,
        pytest.raises(InvalidRequest, match="such as tcp"),
    ):
        llm.generate(PROMPTS[:1], FIRST, use_tqdm=False, kv_transfer_params=WANTED)


@pytest.mark.parametrize(
    ("extra", "transfer", "named"),
    [
        ({}, {}, "needs token or token_file"),
        ({"token": "short"}, {}, "5 characters"),
        ({"token_file": "/nowhere/at/all"}, {}, "token_file '/nowhere/at/all' cannot be read"),
        ({"token": TOKEN, "peer_timeout_s": 0}, {}, "peer_timeout_s"),
        ({"token": TOKEN}, {"kv_port": 0}, "kv_port 0"),
        ({"token": TOKEN}, {"kv_ip": "a b"}, "kv_ip 'a b'"),
        ({"token": TOKEN}, {"kv_buffer_size": 0.0}, "kv_buffer_size"),
    ],
)
def test_settings_are_checked(extra: dict[str, Any], transfer: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Tcp(EngineConfig(), KVTransferConfig("tcp", kv_connector_extra_config=extra, **transfer))
    assert named in str(refused.value)


def test_a_port_that_is_taken_stops_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EngineError, match="cannot be listened on"):
            open_peer("kv_both", taken.getsockname()[1])
