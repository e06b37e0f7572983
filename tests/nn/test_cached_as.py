"""What a layer's cache holds: dtypes and scales reach a backend that takes them, and are refused by
name otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.attention_backends.common.narrow import KV_DTYPES
from builtin_plugins.models import llama
from core.errors import ModelError
from core.models.layers.cached_as import CachedAs
from core.models.layers.decoder import Decoder
from core.models.layers.linear import PlainWeights
from core.models.layers.parallel import ParallelGroup
from core.models.layers.weights import WeightMap
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import OneSequenceAttention, plain_context, read_config


class Scaling(OneSequenceAttention):
    kv_dtypes = ("float8_e4m3fn",)
    kv_scales = True


class Narrow(Scaling):
    kv_dtypes = KV_DTYPES


class SmallCache(PlainWeights):
    """Layer 1 caches in eight bits."""

    def kv_dtype(self, prefix: str) -> str | None:
        return "float8_e4m3fn" if prefix == "model.layers.1.self_attn" else None


def decoder(tmp_path: Path, **changes: Any) -> tuple[Decoder, dict[str, torch.Tensor]]:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path, seed=3)
    context = replace(plain_context(), **changes)
    return Decoder(llama.spec(read_config(folder)), context), load_file(
        folder / "model.safetensors"
    )


@pytest.mark.parametrize(
    "name", ["self_attn.{}_scale", "self_attn.attn.{}_scale", "self_attn.{}_proj.{}_scale"]
)
def test_scales_of_a_checkpoint_reach_the_backend(name: str, tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path, attention=Scaling())
    scales = {
        f"model.layers.1.{name.format(part, part)}": torch.tensor(v)
        for part, v in (("k", 0.5), ("v", 0.25))
    }
    model.load_weights({**tensors, **scales}.items())
    found = [block.attention.params for block in model.layers]  # type: ignore[union-attr]
    assert [(p.key_scale.tolist(), p.value_scale.tolist()) for p in found[:2]] == [
        ([1.0, 1.0], [1.0, 1.0]),
        ([0.5, 0.5], [0.25, 0.25]),
    ]


def test_each_head_may_have_a_scale_and_ranks_take_those_of_theirs(tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path, attention=Scaling())
    scales = {"model.layers.0.self_attn.k_scale": torch.tensor([0.5, 2.0])[:, None, None]}
    model.load_weights({**tensors, **scales}.items())
    assert model.layers[0].attention.params.key_scale.tolist() == [0.5, 2.0]  # type: ignore[union-attr]

    kept = [
        _scales_of_rank(rank, ranks, torch.tensor([0.5, 2.0]))
        for ranks in (2, 4)
        for rank in range(ranks)
    ]
    assert kept == [[0.5], [2.0], [0.5], [0.5], [2.0], [2.0]]
    with pytest.raises(
        ModelError, match=r"k_scale has 3 factors; one is known, or one for each of 2"
    ):
        decoder(tmp_path / "other", attention=Scaling())[0].load_weights(
            {**tensors, "model.layers.0.self_attn.k_scale": torch.ones(3)}.items()
        )


def _scales_of_rank(rank: int, ranks: int, scales: torch.Tensor) -> list[float]:
    weights = WeightMap()
    context = replace(plain_context(ParallelGroup(ranks, rank)), attention=Scaling())
    kept = CachedAs(None, {"k": "attn.k_proj", "v": "attn.v_proj"}, 2, context, weights)
    weights.load({"attn.k_scale": scales}.items())
    return kept.scales["k"].tolist()


class Unscaled(OneSequenceAttention):
    kv_dtypes = ("float8_e4m3fn",)


def test_scales_are_refused_by_name_where_a_small_cache_needs_them_and_nothing_reads_them(
    tmp_path: Path,
) -> None:
    model, tensors = decoder(tmp_path, attention=Unscaled(), quant=SmallCache())
    with pytest.raises(
        ModelError, match=r"layers\.1\.self_attn\.k_scale is a factor of cached keys, .*Unscaled"
    ):
        model.load_weights({**tensors, "model.layers.1.self_attn.k_scale": torch.ones(1)}.items())


def test_scales_are_not_needed_where_keys_and_values_are_cached_as_they_are(tmp_path: Path) -> None:
    model, tensors = decoder(tmp_path)
    model.load_weights(
        {**tensors, "model.layers.0.self_attn.k_scale": torch.full((1,), 0.1)}.items()
    )


def test_a_layer_s_cache_may_have_a_dtype_of_its_own(tmp_path: Path) -> None:
    model, _ = decoder(tmp_path, attention=Scaling(), quant=SmallCache())
    assert [layer.spec.dtype for layer in model.kv_layers[:2]] == ["float32", "float8_e4m3fn"]  # type: ignore[union-attr]
    assert model.kv_layers[1].spec.page_bytes(16) * 4 == model.kv_layers[0].spec.page_bytes(16)


def test_what_a_checkpoint_wishes_is_not_done_where_the_backend_cannot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, tensors = decoder(tmp_path, quant=SmallCache())
    assert {layer.spec.dtype for layer in model.kv_layers} == {"float32"}  # type: ignore[union-attr]
    assert (
        "cached as float8_e4m3fn, which the attention backend OneSequenceAttention does not"
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
    ("asked", "dtype", "scaled"),
    [("fp8", "float8_e4m3fn", False), ("fp8_e5m2", "float8_e5m2", False), ("int8", "int8", True)],
)
def test_who_asks_for_a_dtype_gets_it_whatever_the_checkpoint_states(
    asked: str, dtype: str, scaled: bool, tmp_path: Path
) -> None:
    model, tensors = decoder(tmp_path, attention=Narrow(), quant=SmallCache(), kv_dtype=asked)
    specs = {layer.spec for layer in model.kv_layers}
    assert {(spec.dtype, spec.scaled) for spec in specs} == {(dtype, scaled)}  # type: ignore[union-attr]
    model.load_weights(
        {**tensors, "model.layers.0.self_attn.k_scale": torch.full((1,), 0.5)}.items()
    )
    scale = model.layers[0].attention.params.key_scale  # type: ignore[union-attr]
    assert scale is None if scaled else scale.tolist() == [0.5, 0.5]


def test_computed_factors_stand_behind_vectors_and_take_the_place_of_the_checkpoint_s(
    tmp_path: Path,
) -> None:
    model, tensors = decoder(tmp_path, attention=Narrow(), kv_dtype="fp8", kv_scaled=True)
    model.load_weights(
        {**tensors, "model.layers.0.self_attn.k_scale": torch.full((1,), 0.5)}.items()
    )
    assert model.layers[0].attention.params.key_scale is None  # type: ignore[union-attr]
    plain = decoder(tmp_path / "other")[0].kv_layers[0].spec
    spec = model.kv_layers[0].spec
    assert spec.token_bytes == plain.token_bytes // 4 + 2 * plain.kv_heads * 4  # type: ignore[union-attr]


def test_a_dtype_of_the_cache_that_is_the_model_s_own_changes_nothing(tmp_path: Path) -> None:
    model, _ = decoder(tmp_path, dtype=torch.bfloat16, kv_dtype="bfloat16")
    assert model.layers[0].attention.params.kv_dtype is None  # type: ignore[union-attr]
