"""The memory of the largest step is measured before the KV cache is sized."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from builtin_plugins.platforms.cuda.platform import GpuPlatform
from core import LLM, SamplingParams
from core.api.execution import StepPlan
from core.config.build import config_from_kwargs
from core.engine.resolve import resolve
from core.errors import ConfigError
from core.model_spec.kv import KVLayout
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import make_checkpoint
from core.worker import Worker
from tests.builtin_plugins.platforms.fake_gpu import GIB, NO_CPU, FakeGpu

PLUGINS = [str(Path(__file__).with_name("fake_gpu_plugin.py")), *NO_CPU]
SIZES: dict[str, Any] = {"max_num_seqs": 3, "max_num_batched_tokens": 32, "max_model_len": 64}
PEAK = 200 << 20


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[StepPlan]:
    """Return a list of the steps that were run to be measured, on a device with a peak."""
    found: list[StepPlan] = []
    profile = GpuPlatform.profile

    def recorded(self: Any, config: Any, layers: Any, run: Any) -> None:
        def run_recorded(layout: KVLayout, plan: StepPlan) -> None:
            found.append(plan)
            run(layout, plan)

        profile(self, config, layers, run_recorded)

    monkeypatch.setattr(GpuPlatform, "profile", recorded)
    monkeypatch.setattr(FakeGpu, "peak_bytes", PEAK)
    return found


def start(folder: Path, **settings: Any) -> int:
    """Return the KV memory of a started worker."""
    registry = load_plan(make_plan(PLUGINS))
    given = {"model": str(folder), "device": "fake", "dtype": "float32", **SIZES, **settings}
    resolved = resolve(config_from_kwargs(given, registry.options()), registry, serving=False)
    worker = Worker(resolved.config, registry, resolved.source)
    info = worker.start()
    worker.close()
    return info.kv_memory_bytes


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Mamba2ForCausalLM"])
def test_kv_memory_is_what_the_largest_step_leaves(
    architecture: str, tmp_path: Path, plans: list[StepPlan]
) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", num_hidden_layers=1)
    left = int(0.9 * 2 * GIB) - GIB
    assert start(folder, enforce_eager=True) == left - PEAK
    (plan,) = plans
    assert (plan.num_tokens, len(plan.samples), max(plan.counts)) == (32, 3, 11)
    # Recorded steps of up to 32 tokens have memory of their own.
    assert start(folder) == left - 2 * PEAK


@pytest.mark.parametrize(
    "settings", [{"kv_cache_memory_bytes": 1 << 20}, {"num_gpu_blocks_override": 8}]
)
def test_no_step_is_measured_for_a_cache_of_given_size(
    settings: dict[str, Any], tmp_path: Path, plans: list[StepPlan]
) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path / "model", num_hidden_layers=1)
    start(folder, **settings)
    assert plans == []


def test_tokens_after_a_measured_step_are_equal(tmp_path: Path, plans: list[StepPlan]) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path / "model", num_hidden_layers=1)
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    found = []
    for settings in ({}, {"num_gpu_blocks_override": 8}):
        options = {"device": "fake", "plugins": PLUGINS, "skip_tokenizer_init": True}
        with LLM(str(folder), dtype="float32", **options, **SIZES, **settings) as llm:
            made = FakeGpu.made
            assert made is not None
            assert made._recorded == {}, "nothing is recorded before the first token"
            outputs = llm.generate([[5, 6, 7]], params, use_tqdm=False)
            found.append(list(outputs[0].outputs[0].token_ids))
    assert found[0] == found[1]
    assert len(plans) == 1


def test_step_that_does_not_fit_names_its_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Worker, "_run_alone", fail)
    folder = make_checkpoint("LlamaForCausalLM", tmp_path / "model", num_hidden_layers=1)
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens: got 32; .* with 3 rows"):
        start(folder)
