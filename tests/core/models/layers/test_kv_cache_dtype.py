"""KV cache dtypes and scales: passed to backends that support them, otherwise rejected."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.attention_backends.common.quantized_kv import KV_DTYPES
from builtin_plugins.models import llama
from core.errors import ModelError
from core.model_spec.parallel import ParallelGroup
from core.models.layers.decoder import Decoder
from core.models.layers.kv_cache import KVCacheDtype
from core.models.layers.linear import PlainWeights
from core.models.layers.weights import WeightMap
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import OneSequenceAttention, plain_context, read_config


class Scaling(OneSequenceAttention):
    kv_dtypes = ("float8_e4m3fn",)
    kv_scales = True


class Narrow(Scaling):
    kv_dtypes = KV_DTYPES


class SmallCache(PlainWeights):
    """A quantization method that states FP8 KV for layer 1."""

    def kv_dtype(self, prefix: str) -> str | None:
        return "float8_e4m3fn" if prefix == "model.layers.1.self_attn" else None


def decoder(tmp_path: Path, **changes: Any) -> tuple[Decoder, dict[str, torch.Tensor]]:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path, seed=3)
    context = replace(plain_context(), **changes)
    return Decoder(llama.spec(read_config(folder)), context), load_file(
        folder / "model.safetensors"
    )


def params_of(model: Any) -> list[Any]:
    return [block.attention.params for block in model.layers]


def specs_of(model: Any) -> list[Any]:
    return [layer.spec for layer in model.kv_layers]


@pytest.mark.parametrize(
    "name", ["self_attn.{}_scale", "self_attn.attn.{}_scale", "self_attn.{}_proj.{}_scale"]
)
def test_checkpoint_kv_scales_reach_the_backend(name: str, tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path, attention=Scaling())
    scales = {
        f"model.layers.1.{name.format(part, part)}": torch.tensor(v)
        for part, v in (("k", 0.5), ("v", 0.25))
    }
    model.load_weights({**tensors, **scales}.items())
    found = params_of(model)
    assert [(p.key_scale.tolist(), p.value_scale.tolist()) for p in found[:2]] == [
        ([1.0, 1.0], [1.0, 1.0]),
        ([0.5, 0.5], [0.25, 0.25]),
    ]


def test_per_head_kv_scales_are_split_over_ranks(tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path, attention=Scaling())
    scales = {"model.layers.0.self_attn.k_scale": torch.tensor([0.5, 2.0])[:, None, None]}
    model.load_weights({**tensors, **scales}.items())
    assert params_of(model)[0].key_scale.tolist() == [0.5, 2.0]

    stored = [
        _scales_of_rank(rank, ranks, torch.tensor([0.5, 2.0]))
        for ranks in (2, 4)
        for rank in range(ranks)
    ]
    assert stored == [[0.5], [2.0], [0.5], [0.5], [2.0], [2.0]]
    with pytest.raises(ModelError, match=r"k_scale expected 1 or 2 KV scales, found 3"):
        decoder(tmp_path / "other", attention=Scaling())[0].load_weights(
            {**tensors, "model.layers.0.self_attn.k_scale": torch.ones(3)}.items()
        )


def _scales_of_rank(rank: int, ranks: int, scales: torch.Tensor) -> list[float]:
    weights = WeightMap()
    context = replace(plain_context(ParallelGroup(ranks, rank)), attention=Scaling())
    stored = KVCacheDtype(None, {"k": "attn.k_proj", "v": "attn.v_proj"}, 2, context, weights)
    weights.load({"attn.k_scale": scales}.items())
    return stored.scales["k"].tolist()


class Unscaled(OneSequenceAttention):
    kv_dtypes = ("float8_e4m3fn",)


def test_kv_scales_are_rejected_if_the_backend_does_not_read_them(
    tmp_path: Path,
) -> None:
    model, tensors = decoder(tmp_path, attention=Unscaled(), quant=SmallCache())
    with pytest.raises(
        ModelError, match=r"layers\.1\.self_attn\.k_scale is a factor of cached keys, .*Unscaled"
    ):
        model.load_weights({**tensors, "model.layers.1.self_attn.k_scale": torch.ones(1)}.items())


def test_kv_scales_are_ignored_for_unquantized_cache(tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path)
    model.load_weights(
        {**tensors, "model.layers.0.self_attn.k_scale": torch.full((1,), 0.1)}.items()
    )


def test_layer_may_have_its_own_kv_dtype(tmp_path: Path) -> None:
    model, _ = decoder(tmp_path, attention=Scaling(), quant=SmallCache())
    assert [spec.dtype for spec in specs_of(model)[:2]] == ["float32", "float8_e4m3fn"]
    assert model.kv_layers[1].spec.page_bytes(16) * 4 == model.kv_layers[0].spec.page_bytes(16)


def test_checkpoint_kv_dtype_falls_back_if_backend_does_not_support_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tensors = decoder(tmp_path, quant=SmallCache())
    assert {spec.dtype for spec in specs_of(model)} == {"float32"}
    assert (
        "KV cache dtype of float8_e4m3fn, which the attention backend OneSequenceAttention does not"
        in caplog.text
    )
    model.load_weights(
        {**tensors, "model.layers.1.self_attn.k_scale": torch.full((1,), 0.1)}.items()
    )
    with pytest.raises(
        ModelError, match=r"layers\.0\.self_attn caches keys and values as float8_e4m3fn, which"
    ):
        decoder(tmp_path / "other", kv_dtype="fp8")


@pytest.mark.parametrize(
    ("requested", "dtype", "scaled"),
    [("fp8", "float8_e4m3fn", False), ("fp8_e5m2", "float8_e5m2", False), ("int8", "int8", True)],
)
def test_kv_cache_dtype_flag_overrides_checkpoint(
    requested: str, dtype: str, scaled: bool, tmp_path: Path
) -> None:
    model, tensors = decoder(tmp_path, attention=Narrow(), quant=SmallCache(), kv_dtype=requested)
    assert {(spec.dtype, spec.scaled) for spec in specs_of(model)} == {(dtype, scaled)}
    model.load_weights(
        {**tensors, "model.layers.0.self_attn.k_scale": torch.full((1,), 0.5)}.items()
    )
    scale = params_of(model)[0].key_scale
    assert scale is None if scaled else scale.tolist() == [0.5, 0.5]


def test_calculated_scales_replace_checkpoint_scales(
    tmp_path: Path,
) -> None:
    model, tensors = decoder(tmp_path, attention=Narrow(), kv_dtype="fp8", kv_scaled=True)
    model.load_weights(
        {**tensors, "model.layers.0.self_attn.k_scale": torch.full((1,), 0.5)}.items()
    )
    assert params_of(model)[0].key_scale is None
    plain = specs_of(decoder(tmp_path / "other")[0])[0]
    spec = specs_of(model)[0]
    assert spec.token_bytes == plain.token_bytes // 4 + 2 * plain.kv_heads * 4


def test_model_dtype_as_kv_dtype_changes_nothing(tmp_path: Path) -> None:
    model, _ = decoder(tmp_path, dtype=torch.bfloat16, kv_dtype="bfloat16")
    assert params_of(model)[0].kv_dtype is None
