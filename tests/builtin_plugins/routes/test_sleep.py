"""`LLM.sleep` and `LLM.wake_up`: released memory, and identical answers afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builtin_plugins.routes.operator.sleep import STATES, SleepExtension, _resident_bytes
from core import LLM, SamplingParams
from core.errors import EngineError, InvalidRequest
from core.testing.checkpoints import make_checkpoint

PROMPTS = [[5 + (i * 7 + j) % 40 for j in range(20)] for i in range(3)]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
SIZES = {"hidden_size": 256, "intermediate_size": 768}
WEIGHTS = 3 * (3 * 256 * 768) * 4
"""Bytes of the linear layers outside of attention."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("checkpoint"), **SIZES)


@contextmanager
def opened(checkpoint: Path, **options: Any) -> Iterator[LLM]:
    settings = {
        "enable_sleep_mode": True,
        "max_model_len": 64,
        "max_num_seqs": 4,
        "num_threads": 1,
        "dtype": "float32",
    }
    with LLM(str(checkpoint), **settings | options) as llm:
        yield llm


def answers(llm: LLM) -> list[list[int]]:
    return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


def weights(llm: LLM) -> list[torch.Tensor]:
    """Return the weights of layers, without the head: its padding rows are never written."""
    (model,) = llm.apply_model(lambda model: model)
    return [parameter for name, parameter in model.named_parameters() if name.startswith("layers.")]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "recorded, async scheduling": {"async_scheduling": True, "dtype": "bfloat16"},
    "int8": {"quantization": "int8", "dtype": "bfloat16"},
}
MARKS = dict.fromkeys(("recorded, async scheduling", "int8"), pytest.mark.slow)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    "options", [pytest.param(OPTIONS[name], id=name, marks=MARKS.get(name, ())) for name in OPTIONS]
)
def test_answers_are_identical_after_sleep(
    checkpoint: Path, options: dict[str, Any], level: int
) -> None:
    with opened(checkpoint, **options) as llm:
        before = answers(llm)
        known = [tensor.clone() for tensor in weights(llm)]
        addresses = [tensor.data_ptr() for tensor in weights(llm)]
        for _ in range(2):
            llm.sleep(level=level)
            llm.wake_up()
            assert llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False)[0].num_cached_tokens == 0
            assert answers(llm) == before
        assert [tensor.data_ptr() for tensor in weights(llm)] == addresses
        assert all(torch.equal(now, then) for now, then in zip(weights(llm), known, strict=True))


def test_sleep_level_2_reloads_weights(checkpoint: Path) -> None:
    with opened(
        checkpoint, dtype="bfloat16"
    ) as llm:  # stored in float32, so none is a part of the file
        answers(llm)
        known = [tensor.clone() for tensor in weights(llm)]
        llm.sleep(level=1)
        assert all(torch.equal(now, then) for now, then in zip(weights(llm), known, strict=True))
        llm.wake_up()
        before = _resident_bytes()
        llm.sleep(level=2)
        dropped = [
            then.nbytes
            for now, then in zip(weights(llm), known, strict=True)
            if not torch.equal(now, then)
        ]
        assert sum(dropped) > WEIGHTS // 2 * 0.9
        assert before - _resident_bytes() > WEIGHTS // 2 * 0.5
        llm.wake_up(tags=["weights"])
        assert all(torch.equal(now, then) for now, then in zip(weights(llm), known, strict=True))
        assert llm.core.call("sleeping.state").scheduler == b"1"
        llm.wake_up(tags=["kv_cache"])
        assert llm.core.call("sleeping.state").scheduler == b"0"


def test_sleep_state_metric() -> None:
    half = SleepExtension(parks=False)
    half.attach(SimpleNamespace(kv=SimpleNamespace(usage=0.0)))

    def state() -> list[str]:
        numbers = half.numbers()
        assert {*numbers} == {f"engine_sleep_state{{sleep_state={name}}}" for name in STATES}
        return [name for name in STATES if numbers[f"engine_sleep_state{{sleep_state={name}}}"]]

    assert state() == ["awake"]
    for level, name in ((b"1", "weights_offloaded"), (b"2", "discard_all")):
        half.call("sleep", level)
        assert state() == [name]
        half.call_ended("wake", b"weights", [])
        assert state() == [name]
        half.call_ended("wake", b"kv_cache", [])
        assert state() == ["awake"]
    half.call("release", b"")
    assert state() == ["kv_cache_released"]
    half.call_ended("wake", b"kv_cache", [])
    assert state() == ["awake"]


def test_released_kv_cache_leaves_weights_and_answers_alone(checkpoint: Path) -> None:
    with opened(checkpoint) as llm:
        before = answers(llm)
        known = [tensor.clone() for tensor in weights(llm)]
        llm.release_kv_cache_memory()
        assert all(torch.equal(now, then) for now, then in zip(weights(llm), known, strict=True))
        output = llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False)[0]
        assert "the engine sleeps (kv_cache)" in (output.error or "")
        with pytest.raises(InvalidRequest, match="kv_cache: got a sleeping engine"):
            llm.release_kv_cache_memory()
        llm.wake_up(["kv_cache"])
        assert answers(llm) == before


def test_sleeping_engine_rejects_requests(checkpoint: Path) -> None:
    with opened(checkpoint) as llm:
        before = answers(llm)
        llm.sleep()
        output = llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False)[0]
        assert "the engine sleeps (kv_cache, weights); call wake_up() first" in (output.error or "")
        llm.wake_up(["kv_cache"])
        assert "(weights)" in (llm.generate(PROMPTS[:1], PARAMS, use_tqdm=False)[0].error or "")
        llm.wake_up(["weights"])
        assert answers(llm) == before


def test_failed_reload_stays_asleep_and_can_be_retried(checkpoint: Path) -> None:
    with opened(checkpoint, dtype="bfloat16") as llm:
        before = answers(llm)
        llm.sleep(level=2)
        (stored,) = checkpoint.glob("*.safetensors")
        hidden = stored.rename(stored.with_suffix(".hidden"))
        with pytest.raises(EngineError):
            llm.wake_up()
        assert llm.core.call("sleeping.state").scheduler == b"1"
        hidden.rename(stored)
        llm.wake_up()
        assert answers(llm) == before


def test_invalid_sleep_arguments_are_rejected(checkpoint: Path) -> None:
    with opened(checkpoint) as llm:
        with pytest.raises(InvalidRequest, match="level: is 1 or 2, not '3'"):
            llm.sleep(level=3)
        with pytest.raises(InvalidRequest, match="tags: are weights and kv_cache, not 'all'"):
            llm.wake_up(["all"])
        llm.add_request("r", {"prompt_token_ids": PROMPTS[0]}, PARAMS)
        with pytest.raises(InvalidRequest, match="requests are unfinished"):
            llm.sleep()
    with (
        opened(checkpoint, enable_sleep_mode=False) as llm,
        pytest.raises(AttributeError, match="sleep"),
    ):
        llm.sleep()


def tier(kind: str, folder: Path) -> dict[str, Any]:
    extra: dict[str, Any] = {"cpu_bytes_to_use": 1 << 24}
    if kind == "disk":
        extra = {"folder": str(folder)}
    return {"kv_connector": kind, "kv_connector_extra_config": extra}


@pytest.mark.parametrize("kind", ["offload", "disk"])
def test_weights_that_changed_during_sleep_find_no_block_of_the_old_ones(
    kind: str, tmp_path: Path
) -> None:
    """On the device, in host memory, on disk, and in another engine with the same folder."""
    served = make_checkpoint("LlamaForCausalLM", tmp_path / "served", seed=1, **SIZES)
    other = make_checkpoint("LlamaForCausalLM", tmp_path / "other", seed=2, **SIZES)
    with opened(other) as llm:
        expected = answers(llm)
    options = {"kv_transfer_config": tier(kind, tmp_path / "blocks"), "block_size": 4}
    with opened(served, **options) as llm:
        assert answers(llm) != expected
        llm.sleep(level=2)
        (served / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
        llm.wake_up()
        first = llm.generate(PROMPTS[0], PARAMS, use_tqdm=False)[0]
        assert first.num_cached_tokens == 0
        assert answers(llm) == expected
        llm.reset_prefix_cache()
        assert answers(llm) == expected, "the tier now holds blocks of the new weights"
    with opened(served, **options) as llm:
        assert answers(llm) == expected
    old = make_checkpoint("LlamaForCausalLM", tmp_path / "old", seed=1, **SIZES)
    with opened(old, **options) as llm:
        known = answers(llm)
    with opened(old) as llm:
        assert answers(llm) == known, "no block of the new weights has a key of the old ones"


def test_sleep_waits_for_stores_to_tiers(checkpoint: Path) -> None:
    transfer = {
        "kv_connector": "offload",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 24},
    }
    with opened(checkpoint, kv_transfer_config=transfer) as llm:
        before = answers(llm)
        llm.sleep(level=2)
        llm.wake_up()
        assert answers(llm) == before
