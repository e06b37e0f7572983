"""Blocks of four-bit codes: what they stand for, and that layers keep them in as few bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from engine_gguf.coded import FORMATS, Mxfp4
from engine_gguf.experts import by_expert
from engine_gguf.source import find
from gguf.quants import dequantize
from test_models import assert_alike, scores

from core.api import ModelError, Part
from core.config.build import config_from_kwargs

Made = Callable[..., tuple[Path, Path]]
GPT_OSS = {"layer_types": None, "num_hidden_layers": 2}


def part(rows: int, columns: int, **more: Any) -> Part:
    whole = slice(0, rows)
    facts = {
        "pieces": ((whole, whole),),
        "columns_in": slice(0, columns),
        "out_features": rows,
        "in_features": columns,
    }
    return Part(**{**facts, **more})


def blocks(rows: int, columns: int, kind: str = "MXFP4") -> torch.Tensor:
    random = np.random.default_rng(0)
    found = random.integers(0, 256, (rows, columns // 32, FORMATS[kind].num_bytes), dtype=np.uint8)
    found[..., 0] = random.integers(100, 150, found.shape[:-1])
    if kind == "IQ4_NL":
        found[..., :2] = random.normal(size=(*found.shape[:-1], 1)).astype("<f2").view(np.uint8)
    return torch.from_numpy(found)


@pytest.mark.parametrize("kind", FORMATS)
def test_blocks_stand_for_what_the_library_says(kind: str) -> None:
    stored = blocks(40, 128, kind)
    wanted = dequantize(stored.flatten(1).numpy(), gguf.GGMLQuantizationType[kind])
    found = torch.zeros(40, 128)
    for rows, layout in FORMATS[kind].unpacked({"weight": stored}, part(40, 128)):
        found[rows] = layout.plain()
    assert torch.equal(found, torch.from_numpy(wanted))
    own = FORMATS[kind].unpack({"weight": stored}, part(40, 128, columns_in=slice(32, 96)))
    assert torch.equal(own.plain(), found[:, 32:96])


@pytest.mark.parametrize("shape", [(40, 96), (39, 128)])
def test_blocks_of_another_shape_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match="has the shape"):
        Mxfp4().unpack({"weight": blocks(*shape)}, part(40, 128))


def test_rows_of_all_experts_are_gates_before_ups_for_each_rank() -> None:
    in_turn = ((slice(8, 16, 2), slice(0, 4)), (slice(9, 17, 2), slice(4, 8)))
    whole = part(16, 32, pieces=in_turn, matrix="gate_up", num_experts=2, transposed=True)
    first, second = by_expert(whole)
    assert first.pieces == ((slice(4, 8), slice(0, 4)), (slice(12, 16), slice(4, 8)))
    assert (first.expert, second.expert, first.transposed, first.num_experts) == (0, 1, False, 0)


@pytest.mark.parametrize(
    "kinds", ["MXFP4", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("IQ4_NL", "Q8_0"))]
)
def test_experts_of_gpt_oss_stay_as_they_are_stored(kinds: str, made: Made) -> None:
    file, plain = made("GptOssForCausalLM", {"_exps": kinds, "": "Q8_0"}, **GPT_OSS)
    config: Any = config_from_kwargs({"model": str(file)})
    facts = find(str(file), config).hf_config.quantization_config
    assert facts["experts"] == {
        f"model.layers.{n}.mlp.experts": dict.fromkeys(("gate", "up", "down"), kinds)
        for n in (0, 1)
    }
    assert_alike(scores(file), scores(plain))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_dense_layers_and_the_head_stay_in_few_bits(kind: str, made: Made) -> None:
    file, plain = made("LlamaForCausalLM", kind)
    config: Any = config_from_kwargs({"model": str(file)})
    facts = find(str(file), config).hf_config.quantization_config
    assert set(facts["blocks"].values()) == {kind}
    assert_alike(scores(file), scores(plain))


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["MXFP4", "Q8_0"])
def test_two_ranks_of_gpt_oss_say_what_one_says(kinds: str, made: Made) -> None:
    file, _ = made("GptOssForCausalLM", {"_exps": kinds, "": "Q8_0"}, **GPT_OSS)
    assert_alike(scores(file, tensor_parallel_size=2), scores(file))
