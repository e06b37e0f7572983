"""Two packed layouts: a 4-bit decoder equals one of its unpacked weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from builtin_plugins.models import qwen
from core.model_spec.parallel import ParallelGroup
from core.model_spec.weight_shard import WeightShard
from core.models.layers.decoder import Decoder
from core.models.layers.linear import PlainLinear
from core.testing.one_sequence import Session, plain_context, read_config
from examples.demo_model.quantize import GROUP, dequantized, quantize
from tests.core.models.layers.test_tensor_parallel import Meeting, ThreadGroup

IDS = list(range(100, 130))
WORD = 8
"""Numbers of four bits in 32."""


def numbers(words: torch.Tensor) -> torch.Tensor:
    """Return the 4-bit numbers of each word along the last axis."""
    shifts = torch.arange(0, 32, 4)
    return ((words.long().unsqueeze(-1) >> shifts) & 15).flatten(-2) - 8


class Unpacked(PlainLinear):
    """Collects the rank's packed words and scales, then unpacks them to plain weights."""

    def create(self, layer: Any, in_features: int, out_features: int, dtype: torch.dtype) -> None:
        super().create(layer, in_features, out_features, dtype)
        layer.words = torch.zeros(out_features, in_features // WORD, dtype=torch.int32)
        layer.scales = torch.zeros(out_features, in_features // GROUP)

    def finish(self, layer: Any) -> None:
        scales = layer.scales.repeat_interleave(GROUP, 1)
        layer.weight.data.copy_((numbers(layer.words) * scales).bfloat16())


class Gptq(Unpacked):
    """Packed along the input, which lies on the first axis; zero points packed along the output."""

    suffixes = ("qweight", "qzeros", "scales", "g_idx")

    def shape(self, suffix: str, part: WeightShard) -> tuple[int, ...] | None:
        groups = part.in_features // GROUP
        out = part.out_features
        shapes: dict[str, tuple[int, ...]] = {
            "qweight": (part.in_features // WORD, out),
            "qzeros": (groups, out // WORD),
            "scales": (groups, out),
            "g_idx": (part.in_features,),
        }
        return shapes[suffix]

    def load(
        self, layer: Any, suffix: str, tensor: torch.Tensor, part: WeightShard | slice
    ) -> None:
        assert isinstance(part, WeightShard)
        if suffix == "qweight":
            layer.words[part.target] = part.columns(part.rows(tensor, 1), 0, per=WORD).T
        elif suffix == "scales":
            layer.scales[part.target] = part.columns(part.rows(tensor, 1), 0, per=GROUP).T.float()
        elif suffix == "qzeros":
            assert part.rows(tensor, 1, per=WORD).shape[1] == len(layer.words[part.target]) // WORD
        else:
            own = part.columns(tensor, 0)
            assert own.tolist() == [
                index // GROUP for index in range(part.columns_in.start, part.columns_in.stop)
            ]


class Compressed(Unpacked):
    """Packed along the input on the second axis, with the whole shape in a tensor of its own."""

    suffixes = ("weight_packed", "weight_scale")
    optional_suffixes = ("weight_shape",)

    def load(
        self, layer: Any, suffix: str, tensor: torch.Tensor, part: WeightShard | slice
    ) -> None:
        assert isinstance(part, WeightShard)
        if suffix == "weight_packed":
            layer.words[part.target] = part.columns(part.rows(tensor), per=WORD)
        elif suffix == "weight_scale":
            layer.scales[part.target] = part.columns(part.rows(tensor), per=GROUP).float()
        else:
            assert tensor.tolist() == [part.out_features, part.in_features]


class Method:
    name = "packed"

    def __init__(self, method: type[Unpacked]) -> None:
        self._method = method

    def linear(self, prefix: str) -> Unpacked:
        return self._method()


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("layout", "method"), [("gptq", Gptq), ("compressed-tensors", Compressed)])
def test_packed_weights_split_over_ranks_equal_unpacked(
    layout: str, method: type[Unpacked], size: int, demo_folder: Path, tmp_path: Path
) -> None:
    quantize(demo_folder, tmp_path, layout, 4)
    spec = qwen.qwen3(read_config(demo_folder))
    spec = replace(spec, layers=spec.layers[:2])

    def run(
        group: ParallelGroup, tensors: dict[str, torch.Tensor], quant: Any = None
    ) -> torch.Tensor:
        torch.set_num_threads(1)
        context = plain_context(group)
        decoder = Decoder(spec, context if quant is None else replace(context, quant=quant))
        others = [f"model.layers.{index}." for index in range(2, 6)]
        decoder.load_weights(
            pair for pair in tensors.items() if not pair[0].startswith(tuple(others))
        )
        return Session(decoder).step(IDS)

    expected = run(ParallelGroup(), dequantized(tmp_path))
    packed = load_file(tmp_path / "model.safetensors")
    meeting = Meeting(size)
    with ThreadPoolExecutor(size) as pool:
        groups = [ThreadGroup(size, rank, meeting) for rank in range(size)]
        for found in pool.map(lambda group: run(group, packed, Method(method)), groups):
            torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
