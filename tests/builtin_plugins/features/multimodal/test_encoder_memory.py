"""The memory plan counts what encoding the largest image takes, as torch measures it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("PIL", reason="Pillow is not installed")

from builtin_plugins.features.multimodal.encoder_memory import encoder_bytes
from builtin_plugins.features.multimodal.largest_item import SHAPES, largest_item
from builtin_plugins.features.multimodal.processor_process import load_processor
from builtin_plugins.features.multimodal.settings import Settings
from builtin_plugins.features.multimodal.worker import MultimodalWorker
from builtin_plugins.input_processors.api import ProcessedItem
from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.config.sections import CacheConfig
from core.model_spec.decoder import DecoderSpec
from core.models.layers.decoder import Decoder
from core.models.layers.loading import read_model
from core.plugin import Registry, load_plan, make_plan
from core.testing.one_sequence import plain_context
from tests.builtin_plugins.models.vision.checkpoints import MODELS

MAX_PIXELS = 512 * 512
PLANNED = [name for name, model in MODELS.items() if model.plans_memory]
KERNEL_BYTES = 64 * 1024
"""Buffers within a kernel, such as attention's blocks of scores: little next to a real item."""
WITHIN_KERNELS = ("aria",)
"""A kernel sums a mask of all pixels in a copy of eight times its size."""
FAST = ("qwen3_vl",)


def towers(name: str, folder: Path) -> tuple[Any, Any, ProcessedItem]:
    """Return a model's tower on the meta device, its loaded one, and its largest item."""
    model = MODELS[name]
    if model.needs is not None:
        pytest.importorskip(model.needs, reason=f"{model.needs} is not installed")
    model.make(folder)
    registry: Registry = load_plan(make_plan())
    config: EngineConfig = config_from_kwargs(
        {"model": str(folder), "dtype": "float32", "max_model_len": 256}, registry.options()
    )
    source = registry.find_model(config.model.model, config)
    assert source is not None
    spec: Any = read_model(config, source, registry)[0]
    made = []
    for device in ("meta", "cpu"):
        context = replace(plain_context(), device=device)
        is_native = isinstance(spec, DecoderSpec)
        built: Any = Decoder(spec, context) if is_native else spec.build(context)
        if device == "cpu":
            loader = registry.load(registry.choose("weight_loaders", source.weight_loader))
            built.load_weights(loader(source, config).tensors())
        made.append(built.tower)
    item = largest_item(load_processor(config, registry), MAX_PIXELS, {})
    return made[0], made[1], item


def measured_bytes(tower: Any, item: ProcessedItem) -> int:
    """Return the largest number of bytes of torch's allocations while an item is encoded."""
    tower.encode(item.modality, item.tensors)  # what is made once
    with (
        torch.inference_mode(),
        torch.profiler.profile(profile_memory=True, acc_events=True) as profile,
    ):
        encoded = tower.encode(item.modality, item.tensors)
    assert len(encoded.embeddings) >= 1
    total = 0
    peak = 0
    profiler: Any = profile.profiler
    events = profiler.kineto_results.events()
    for event in sorted(events, key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak + sum(tensor.nbytes for tensor in item.tensors.values())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in PLANNED]
)
def test_counted_bytes_of_encoding_are_the_measured_ones(name: str, tmp_path: Path) -> None:
    planned, loaded, item = towers(name, tmp_path)
    counted = encoder_bytes(planned, item.modality, item.tensors)
    measured = measured_bytes(loaded, item)
    assert counted <= measured * 1.5
    if name not in WITHIN_KERNELS:
        assert measured <= counted * 1.1 + KERNEL_BYTES


def test_largest_item_is_that_of_the_best_shape() -> None:
    class Tiles:
        """A tile for every 10 x 10 pixels of a grid of at most 12 tiles."""

        def process(self, modality: str, image: Any, kwargs: Any) -> ProcessedItem:
            assert image.width * image.height <= MAX_PIXELS
            tiles = 12 if image.width * 3 == image.height * 4 else 9
            return ProcessedItem(modality, "", tiles, {"pixels": torch.zeros(tiles)})

    processor: Any = Tiles()
    assert (4, 3) in SHAPES
    assert largest_item(processor, MAX_PIXELS, {}).num_tokens == 12


@pytest.mark.parametrize(
    ("device", "kv_bytes", "reserved"),
    [("meta", None, 1000), ("meta", 1 << 20, None), ("cpu", None, None)],
)
def test_memory_of_the_encoder_is_held_while_the_kv_cache_is_sized(
    device: str, kv_bytes: int | None, reserved: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MultimodalWorker, "host_bytes", lambda *_: 1000)
    config = EngineConfig(cache=CacheConfig(kv_cache_memory_bytes=kv_bytes))
    settings = Settings.from_config(config)
    made: Any = MultimodalWorker
    worker = made(settings, SimpleNamespace(), None)
    parts: Any = SimpleNamespace(
        model=SimpleNamespace(),
        context=SimpleNamespace(attention=None, device=device),
        config=config,
        batch=None,
    )
    worker.loaded(parts)
    held = worker._reserved
    assert (None if held is None else held.nbytes) == reserved
    worker.attach(parts)
    assert worker._reserved is None
