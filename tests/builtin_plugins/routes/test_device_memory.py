"""Release and restore of GPU memory during sleep, on the fake device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.routes.operator.device_memory import DeviceMemory
from core import LLM, SamplingParams
from core.errors import RequestFailed
from core.testing.checkpoints import make_checkpoint

PLATFORMS = Path(__file__).parents[1] / "platforms"
NO_CPU = ("no:ops_cpu", "no:quant_cpu_packed", "no:attention_paged")
PARAMS = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)


@pytest.fixture
def emptied(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each call of `empty_cache`."""
    calls: list[bool] = []
    monkeypatch.setattr(torch.cpu, "empty_cache", lambda: calls.append(True), raising=False)
    return calls


class Model(torch.nn.Module):
    """A model with tied parameters, a buffer and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(12.0).view(3, 4), requires_grad=False)
        self.tied = torch.nn.Parameter(self.weight.data, requires_grad=False)
        self.register_buffer("count", torch.tensor([7]))
        self.view = self.weight.data[1]


def test_device_memory_is_released_and_restored(emptied: list[bool]) -> None:
    model = Model()
    cache = torch.ones(5, 8, dtype=torch.uint8)
    memory = DeviceMemory(model, [cache, cache[2:]], "cpu")
    known = model.weight.clone()
    for times in (1, 2):
        assert memory.release(save_weights=True) == 12 * 4 + 8 + 40
        assert (model.weight.untyped_storage().nbytes(), cache.untyped_storage().nbytes()) == (0, 0)
        assert (model.storage_version, len(emptied)) == (times, times)
        memory.restore_caches()
        assert not cache.any()
        assert model.view.untyped_storage().nbytes() == 0, "weights are still released"
        assert not memory.restore_weights(), "the host has a copy"
        assert torch.equal(model.weight, known)
        assert torch.equal(model.tied, known)
        assert torch.equal(model.view, known[1])
        assert model.count.item() == 7
    assert memory.release_caches() == 40
    assert torch.equal(model.weight, known), "weights stay on the device"
    memory.restore_caches()
    assert not cache.any()
    memory.release(save_weights=True)
    assert memory.release(save_weights=False) == 0, "the second call drops the host's copy"
    assert memory.restore_weights(), "they must be reloaded"
    assert model.view.untyped_storage().nbytes() == 48


def test_restore_without_free_memory_fails_and_can_be_retried(emptied: list[bool]) -> None:
    model = Model()
    memory = DeviceMemory(model, [], "cpu")
    known = model.weight.clone()
    memory.release(save_weights=True)
    resize = torch.UntypedStorage.resize_

    def full(storage: torch.UntypedStorage, size: int) -> Any:
        raise torch.OutOfMemoryError

    torch.UntypedStorage.resize_ = full  # type: ignore[method-assign,assignment]
    try:
        with pytest.raises(RequestFailed, match=r"not free on this device.*wake_up\(\) again"):
            memory.restore_weights()
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
    assert not memory.restore_weights()
    assert torch.equal(model.weight, known)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_gpu_tokens_are_identical_after_sleep(
    level: int, emptied: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PLATFORMS)
    folder = make_checkpoint("LlamaForCausalLM", tmp_path / "model", seed=1)
    settings: dict[str, Any] = {
        "max_model_len": 32,
        "max_num_seqs": 2,
        "num_gpu_blocks_override": 20,
    }
    settings |= {"device": "fake", "plugins": [str(PLATFORMS / "fake_gpu_plugin.py"), *NO_CPU]}
    # Stored in float32, so no weight is in the mapped file, which cannot be released.
    with LLM(
        str(folder), dtype="bfloat16", enable_sleep_mode=True, skip_tokenizer_init=True, **settings
    ) as llm:
        from tests.builtin_plugins.platforms.fake_gpu import FakeGpu

        def tokens() -> list[list[int]]:
            return [
                list(o.outputs[0].token_ids)
                for o in llm.generate([[5, 6, 7], [9]], PARAMS, use_tqdm=False)
            ]

        before = tokens()
        (model,) = llm.apply_model(lambda model: model)
        for _ in range(2):
            llm.sleep(level=level)
            assert all(each.untyped_storage().nbytes() == 0 for each in model.parameters())
            llm.wake_up()
            assert FakeGpu.made is not None
            assert tokens() == before
            assert FakeGpu.recorder.replays > 0, "steps are recorded anew"
            FakeGpu.recorder.replays = 0
