"""Blocks of four-bit codes decode correctly, and layers store them in few bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from engine_gguf.block_formats import FORMATS, Mxfp4
from engine_gguf.experts import split_experts
from engine_gguf.source import find
from gguf.quants import dequantize
from test_models import assert_close, logprobs

from core.api import ModelError
from core.config.build import config_from_kwargs
from core.model_spec.weight_shard import WeightShard

Made = Callable[..., tuple[Path, Path]]
GPT_OSS = {"layer_types": None, "num_hidden_layers": 2}


def part(rows: int, columns: int, **more: Any) -> WeightShard:
    whole = slice(0, rows)
    facts = {
        "pieces": ((whole, whole),),
        "columns_in": slice(0, columns),
        "out_features": rows,
        "in_features": columns,
    }
    return WeightShard(**{**facts, **more})


def blocks(rows: int, columns: int, kind: str = "MXFP4") -> torch.Tensor:
    random = np.random.default_rng(0)
    found = random.integers(0, 256, (rows, columns // 32, FORMATS[kind].num_bytes), dtype=np.uint8)
    found[..., 0] = random.integers(100, 150, found.shape[:-1])
    if kind == "IQ4_NL":
        found[..., :2] = random.normal(size=(*found.shape[:-1], 1)).astype("<f2").view(np.uint8)
    return torch.from_numpy(found)


@pytest.mark.parametrize("kind", FORMATS)
def test_blocks_match_library_dequantization(kind: str) -> None:
    stored = blocks(40, 128, kind)
    expected = dequantize(stored.flatten(1).numpy(), gguf.GGMLQuantizationType[kind])
    found = torch.zeros(40, 128)
    for rows, layout in FORMATS[kind].unpack_chunks({"weight": stored}, part(40, 128)):
        found[rows] = layout.dequantize()
    assert torch.equal(found, torch.from_numpy(expected))
    own = FORMATS[kind].unpack({"weight": stored}, part(40, 128, columns_in=slice(32, 96)))
    assert torch.equal(own.dequantize(), found[:, 32:96])


@pytest.mark.parametrize("shape", [(40, 96), (39, 128)])
def test_wrong_block_shape_is_rejected(shape: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match="got shape"):
        Mxfp4().unpack({"weight": blocks(*shape)}, part(40, 128))


def test_split_experts_orders_gate_before_up_per_rank() -> None:
    in_turn = ((slice(8, 16, 2), slice(0, 4)), (slice(9, 17, 2), slice(4, 8)))
    whole = part(16, 32, pieces=in_turn, matrix="gate_up", num_experts=2, transposed=True)
    first, second = split_experts(whole)
    assert first.pieces == ((slice(4, 8), slice(0, 4)), (slice(12, 16), slice(4, 8)))
    assert (first.expert, second.expert, first.transposed, first.num_experts) == (0, 1, False, 0)


@pytest.mark.parametrize(
    "kinds", ["MXFP4", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("IQ4_NL", "Q8_0"))]
)
def test_gpt_oss_experts_stay_in_blocks(kinds: str, made: Made) -> None:
    file, plain = made("GptOssForCausalLM", {"_exps": kinds, "": "Q8_0"}, **GPT_OSS)
    config: Any = config_from_kwargs({"model": str(file)})
    facts = find(str(file), config).hf_config.quantization_config
    assert facts["experts"] == {
        f"model.layers.{n}.mlp.experts": dict.fromkeys(("gate", "up", "down"), kinds)
        for n in (0, 1)
    }
    assert_close(logprobs(file), logprobs(plain))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_dense_layers_and_head_stay_quantized(kind: str, made: Made) -> None:
    file, plain = made("LlamaForCausalLM", kind)
    config: Any = config_from_kwargs({"model": str(file)})
    facts = find(str(file), config).hf_config.quantization_config
    assert set(facts["blocks"].values()) == {kind}
    assert_close(logprobs(file), logprobs(plain))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["MXFP4", "Q8_0"])
def test_gpt_oss_tp2_matches_tp1(kinds: str, made: Made) -> None:
    file, _ = made("GptOssForCausalLM", {"_exps": kinds, "": "Q8_0"}, **GPT_OSS)
    assert_close(logprobs(file, tensor_parallel_size=2), logprobs(file))
