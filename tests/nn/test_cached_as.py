"""What a layer's cache holds: dtypes and scales reach a backend that takes them, and are refused by name otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.models import llama
from core.errors import ModelError
from core.nn.decoder import Decoder
from core.nn.linear import PlainWeights
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import OneSequenceAttention, plain_context, read_config


class Scaling(OneSequenceAttention):
    kv_dtypes = ("float8_e4m3fn",)
    kv_scales = True


class SmallCache(PlainWeights):
    """Layer 1 caches in eight bits."""

    def kv_dtype(self, prefix: str) -> str | None:
        return "float8_e4m3fn" if prefix == "model.layers.1.self_attn" else None


def decoder(tmp_path: Path, **changes: Any) -> tuple[Decoder, dict[str, torch.Tensor]]:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path, seed=3)
    context = replace(plain_context(), **changes)
    return Decoder(llama.spec(read_config(folder)), context), load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["self_attn.{}_scale", "self_attn.attn.{}_scale", "self_attn.{}_proj.{}_scale"])
def test_scales_of_a_checkpoint_reach_the_backend(name: str, tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path, attention=Scaling())
    scales = {f"model.layers.1.{name.format(part, part)}": torch.tensor(v) for part, v in (("k", 0.5), ("v", 0.25))}
    model.load_weights({**tensors, **scales}.items())
    found = [block.attention.params for block in model.layers]  # type: ignore[union-attr]
    assert [(p.key_scale.item(), p.value_scale.item()) for p in found[:2]] == [(1.0, 1.0), (0.5, 0.25)]


class Unscaled(OneSequenceAttention):
    kv_dtypes = ("float8_e4m3fn",)


def test_scales_are_refused_by_name_where_a_small_cache_needs_them_and_nothing_reads_them(tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path, attention=Unscaled(), quant=SmallCache())
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.k_scale is a factor of cached keys, .*Unscaled"):
        model.load_weights({**tensors, "model.layers.1.self_attn.k_scale": torch.ones(1)}.items())


def test_scales_are_not_needed_where_keys_and_values_are_cached_as_they_are(tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path)
    model.load_weights({**tensors, "model.layers.0.self_attn.k_scale": torch.full((1,), 0.1)}.items())


def test_a_layer_s_cache_may_have_a_dtype_of_its_own(tmp_path: Path) -> None:
    model, _ = decoder(tmp_path, attention=Scaling(), quant=SmallCache())
    assert [layer.spec.dtype for layer in model.kv_layers[:2]] == ["float32", "float8_e4m3fn"]  # type: ignore[union-attr]
    assert model.kv_layers[1].spec.page_bytes(16) * 4 == model.kv_layers[0].spec.page_bytes(16)
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn caches keys and values as float8_e4m3fn, which"):
        decoder(tmp_path / "other", quant=SmallCache())
